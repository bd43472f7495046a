"""Test classes that were written for another harness and that run on warm ranks as they are (`ddp_adopt`)."""
