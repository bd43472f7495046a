"""Imports what a rank with a pytest session needs; the fork server does so once for all ranks."""

import pytest_ddp.rank_session.session  # noqa: F401
from pytest_ddp.pytest_internals import import_default_plugins

import_default_plugins()
