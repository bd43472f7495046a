"""ZeRO stage 1: each rank keeps the optimizer state of its own parameters only."""
