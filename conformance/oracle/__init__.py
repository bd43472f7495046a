"""What must come out, and how near."""
