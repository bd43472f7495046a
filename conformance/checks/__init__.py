"""The checks: one function each, whose docstring is the property that it holds a component to."""
