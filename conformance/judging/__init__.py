"""One check, from the draw to the verdict."""
