"""What a rank with a pytest session needs besides, imported once in the fork server."""

import importlib

from _pytest.config import default_plugins

for plugin in default_plugins:
    importlib.import_module(f"_pytest.{plugin}")
