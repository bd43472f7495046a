"""The random generators that a training process draws from: what they are about to draw, kept and put back.

Dropout draws from torch's generator of the device, data augmentation from torch's, NumPy's or Python's. Training is
repeated to the last bit only if all of them go on where they were. Every rank has its own, so that ranks draw different
dropout masks; each therefore keeps its own states.
"""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The states of this process's generators, as tensors and plain values; of this rank's GPU if it uses one."""
    numpys: Any = np.random.get_state(legacy=False)  # noqa: NPY002  the global generator is what old transforms use
    return {
        "python": random.getstate(),
        "numpy": {**numpys, "state": {**numpys["state"], "key": numpys["state"]["key"].tolist()}},
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
    }


def restore(state: dict[str, Any]) -> None:
    """Make the generators go on where they were when `capture` gave `state`; a GPU's if there is one now and then."""
    random.setstate(state["python"])
    key = np.array(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state["numpy"], "state": {**state["numpy"]["state"], "key": key}})  # noqa: NPY002
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
