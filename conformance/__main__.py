"""Makes `python -m conformance` run the command line, in an interpreter from which a fork server can be forked."""

import sys

from conformance.execution.fork_servers import become_forkable

if __name__ == "__main__":
    become_forkable()

    from conformance.cli import main

    sys.exit(main())
