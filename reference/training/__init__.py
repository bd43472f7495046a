"""The training loop and its parts: steps, precision, evaluation, checkpoints."""
