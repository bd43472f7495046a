"""Datasets, the samples that each rank reads, and the seeds of random numbers in data loading."""
