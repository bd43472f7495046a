"""Finds the known mistake behind a failure, and describes crashes."""
