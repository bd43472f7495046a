"""One rank records its own collectives, on a logical clock."""
