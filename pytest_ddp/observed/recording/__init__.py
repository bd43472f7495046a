"""A rank records its own operations and backward passes, on a logical clock."""
