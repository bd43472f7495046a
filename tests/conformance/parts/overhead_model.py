"""A right overhead model."""

import math


def ddp_overhead(s, w, o, n_b):
    return s / (n_b * w) + n_b * o


def optimal_bucket_size(s, w, o):
    return math.sqrt(s * w * o)
