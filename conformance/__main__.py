"""Makes `python -m conformance` run the command line."""

import sys

from conformance.cli import main

sys.exit(main())
