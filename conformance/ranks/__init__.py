"""Runs beside the submission, and judges nothing."""
