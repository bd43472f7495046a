"""Names the mistake behind a failure."""
