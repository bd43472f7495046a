"""Asks the submission's overhead model for one prediction and one bucket size."""

from conformance.ranks.context import Context


def predict(context: Context) -> None:
    """Answer with the predicted seconds after backward, and the bytes of the best bucket."""
    s, w, o = (float(context.given[name]) for name in "swo")
    context.number("overhead", context.call("ddp_overhead", s, w, o, int(context.given["n_b"])))
    context.number("bucket", context.call("optimal_bucket_size", s, w, o))
