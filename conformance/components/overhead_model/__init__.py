"""The time that communication adds to a step, and the bucket size that minimises it."""
