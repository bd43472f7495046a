"""`python -m pytest_ddp.gpu_gate` is `pytest-ddp-gpu-gate`."""

import sys

from pytest_ddp.gpu_gate.cli import main

sys.exit(main())
