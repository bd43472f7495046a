"""The fixture `ddp_ranks`: a plain test calls functions on ranks."""
