"""The assignment's measurements: each is one command, `python -m reference.bench NAME`, with a table and pictures."""
