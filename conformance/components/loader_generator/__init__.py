"""Each rank's generator for its data loader."""
