"""Batch norm over the samples of all ranks."""
