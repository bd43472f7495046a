"""pytest starts without torch and without Hypothesis: the controller's packages import where neither is installed."""

import pkgutil
import subprocess
import sys

import pytest

import pytest_ddp.controller
import pytest_ddp.hosts
import pytest_ddp.operations
import pytest_ddp.outcomes
import pytest_ddp.planning
import pytest_ddp.pool
import pytest_ddp.protocol
import pytest_ddp.remote_calls
import pytest_ddp.reporting

BLOCKED = """
import importlib, sys
sys.modules.update({"torch": None, "hypothesis": None})
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
PACKAGES = [
    pytest_ddp.remote_calls,
    pytest_ddp.controller,
    pytest_ddp.reporting,
    pytest_ddp.hosts,
    pytest_ddp.pool,
    pytest_ddp.outcomes,
    pytest_ddp.operations,
    pytest_ddp.protocol,
    pytest_ddp.planning,
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_module_of_a_package_imports_without_torch_and_hypothesis(package):
    names = [module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    assert names
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *names, "pytest_ddp.plugin"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
