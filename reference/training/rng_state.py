"""The states of the random generators that a training draws from: save them, and restore them.

Dropout draws from torch's generator of the device; data augmentation draws from torch's, NumPy's or Python's generator.
A resumed training repeats an uninterrupted one to the last bit only if all of them continue where they were. Ranks draw
different dropout masks, so each rank has states of its own.
"""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The states of this process's generators, and of this rank's GPU if it uses one, as tensors and plain values."""
    of_numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002  old transforms use the global generator
    return {
        "python": random.getstate(),
        "numpy": {**of_numpy, "state": {**of_numpy["state"], "key": of_numpy["state"]["key"].tolist()}},
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
    }


def restore(state: dict[str, Any]) -> None:
    """Restore the states that `capture` returned; a GPU's state only if this process has a GPU, too."""
    random.setstate(state["python"])
    key = np.array(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state["numpy"], "state": {**state["numpy"]["state"], "key": key}})  # noqa: NPY002
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
