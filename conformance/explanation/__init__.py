"""Explains components and checks: what is required, why, what usually goes wrong, and a picture."""
