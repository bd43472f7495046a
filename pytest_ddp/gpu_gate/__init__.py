"""The GPU gate: runs a candidate's tests on GPUs, and decides by itself whether the run counts.

Two kinds of code take part. The **gate** belongs to the base branch: it measures the machine, starts the tests, and
decides. The **candidate** is the change under test: it runs in child processes with few variables of the environment,
and everything that it writes is read as data. The gate imports neither torch nor anything of the candidate.
"""
