"""What crosses the wall between the judge and the ranks."""
