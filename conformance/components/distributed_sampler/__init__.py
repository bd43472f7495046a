"""Deals the samples of a data set to the ranks."""
