"""Rank processes, seen from outside: start them, send them runs, wait for their outcomes, end them."""
