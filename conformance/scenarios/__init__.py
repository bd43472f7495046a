"""What a rank is asked, as plain data: no torch here."""
