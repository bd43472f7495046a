"""What a check is, as data, and the assertions that several components share."""
