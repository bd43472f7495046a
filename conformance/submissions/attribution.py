"""Tells the submission's faults from ours, on a rank."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.submissions.loading import own_frames, raised_on_purpose
from conformance.submissions.location import Location
from pytest_ddp.rank.worker import Failed


@contextmanager
def stage(submission: Location, name: str, step: int | None = None) -> Iterator[None]:
    """Attribute what is raised inside to the submission, which also answers for `SystemExit` and the like."""
    try:
        yield
    except Failed:  # by a stage within this one, which knows better
        raise
    except BaseException as error:
        where = {"stage": name, "step": step, "refused": raised_on_purpose(error, submission)}
        text = own_frames(error, submission)
        raise Failed(type(error).__name__, str(error), text, json.dumps(where).encode()) from error
