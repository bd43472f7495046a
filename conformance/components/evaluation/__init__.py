"""The accuracy over the samples of all ranks."""
