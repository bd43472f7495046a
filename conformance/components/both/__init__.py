"""The submission's own wrapper together with its own sharded optimizer."""
