"""What a submission is, and how a rank imports it."""
