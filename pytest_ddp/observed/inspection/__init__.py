"""What a test may ask of a record: counts, order, overlap, traces."""
