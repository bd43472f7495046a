"""The GPU lane: what needs a GPU, and nothing else (`ci/gpu_gate`)."""

from inner_suite import run_suite  # noqa: F401  a fixture
