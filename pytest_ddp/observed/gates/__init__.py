"""A gate holds back the completion of operations, so that a race has the same result in every run."""
