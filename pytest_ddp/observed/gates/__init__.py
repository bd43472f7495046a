"""Gates hold back the completion of collectives, so that races become deterministic."""
