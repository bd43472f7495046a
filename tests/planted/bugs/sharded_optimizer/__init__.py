"""Bugs planted in the sharded optimizer (`examples/correct`)."""

from bugs.sharded_optimizer import closure, groups, options, shares, state, steps

BUGS = [*closure.BUGS, *groups.BUGS, *options.BUGS, *shares.BUGS, *state.BUGS, *steps.BUGS]
