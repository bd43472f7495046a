"""`python -m reference.train` trains a model on several ranks: the command is `reference.training.train`."""

from reference.training.train import main

if __name__ == "__main__":
    main()
