"""Runs on the ranks, beside the submission: imports it, trains with it and measures; judges nothing."""
