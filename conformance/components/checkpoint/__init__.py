"""Saves a training, and loads it again."""
