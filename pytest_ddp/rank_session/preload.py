"""What a rank with a pytest session needs besides, imported once in the fork server."""

from pytest_ddp.pytest_internals import import_default_plugins

import_default_plugins()
