"""The suite for maintainers of a library: `conformance.verify` in a test file of their own."""
