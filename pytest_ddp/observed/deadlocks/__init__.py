"""All ranks compare what they announce: mismatches and deadlocks are found at once."""
