"""Keeps a submission's ranks away from the rest of the machine: namespaces, another user, limits, a clean environment.

Nothing here knows what is graded. `view` and `plan` say what a sandbox is like, as values; the other modules make it.
"""
