"""What an assignment asks for: one folder per component."""
