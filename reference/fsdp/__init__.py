"""Fully sharded data parallelism: each rank keeps a part of every parameter, gradient and optimizer state."""
