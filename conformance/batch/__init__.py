"""Grades the submissions of a whole course: one process tree each, in parallel, and again from where it was cut off."""
