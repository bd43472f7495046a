"""`python -m reference.demo` shows an all-reduce: the command is `reference.communication.demo`."""

from reference.communication.demo import main

if __name__ == "__main__":
    main()
