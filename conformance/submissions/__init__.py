"""What a submission is: where it lies, and which functions it may define."""
