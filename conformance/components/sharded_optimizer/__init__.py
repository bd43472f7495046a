"""Optimizers whose state is dealt to the ranks."""
