"""Makes `python -m conformance` run the command line, as `pytest-ddp-grade` does.

`python -m` puts the working directory first on `sys.path`: a `queue.py` there would replace Python's. It is removed
before anything is imported, unless this package lies there.
"""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd() and not __file__.startswith(os.path.join(sys.path[0], "")):  # noqa: PTH109, PTH118  pathlib is not imported yet
    del sys.path[0]

from conformance.cli import main

sys.exit(main())
