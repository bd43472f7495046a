"""What became of the ranks of a run, as values and in words."""
