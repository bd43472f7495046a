"""Exercises: what a rank does with the submission's code to answer a case, one file a component.

They run beside the submission, and judge nothing.
"""
