"""Data-parallel wrappers, from the simplest to the fastest: each rank holds the whole model, gradients are averaged."""
