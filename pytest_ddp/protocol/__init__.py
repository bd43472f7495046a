"""What crosses a process boundary between the controller and its ranks."""
