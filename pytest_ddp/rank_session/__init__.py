"""The pytest session that runs inside a rank process."""
