"""A submission's report, and its forms."""
