"""One optimizer step over several micro-batches."""
