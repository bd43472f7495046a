"""Asks the submission's overhead model for one prediction and one bucket size."""

from conformance.ranks.context import Desk


def predict(desk: Desk) -> None:
    """Answer with the predicted seconds after backward, and the bytes of the best bucket."""
    s, w, o = (float(desk.given[name]) for name in "swo")
    desk.number("overhead", desk.call("ddp_overhead", s, w, o, int(desk.given["n_b"])))
    desk.number("bucket", desk.call("optimal_bucket_size", s, w, o))
