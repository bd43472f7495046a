"""Computes on every GPU that torch finds. The gate runs this text with the candidate's Python; it never imports it."""

import json


def probe() -> dict[str, object]:
    """Return torch's version, and for each GPU its name and a sum that it computed."""
    import torch  # noqa: PLC0415  the candidate's

    gpus = []
    for index in range(torch.cuda.device_count()):
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        gpus.append([torch.cuda.get_device_name(index), (ones @ ones).sum().item()])
    return {"torch": torch.__version__, "gpus": gpus}


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201  the gate reads it
