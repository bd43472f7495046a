"""Data-parallel wrappers around a module."""
