"""Every component of the distributed-training assignment, one algorithm a file, written to be read."""
