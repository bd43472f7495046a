"""What a test asks for, and whether this machine can run it."""
