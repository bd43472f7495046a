"""What travels between controller and ranks arrives as it was, and anything else is told from it."""

import pytest
import torch

from conformance.protocol.codec import MalformedError, pack, unpack

TENSORS = {
    "transposed": torch.arange(6.0).reshape(2, 3).mT,
    "halves": torch.tensor([0.5, 65504.0], dtype=torch.float16),
    "complex": torch.tensor([[1 + 2j, -3j]], dtype=torch.complex128),
    "one complex number": torch.tensor(1j, dtype=torch.complex64),
    "nothing": torch.empty(0, 3, dtype=torch.int64),
}


def test_header_and_tensors_arrive_with_their_dtypes():
    header, tensors = unpack(pack({"losses": [1.5]}, TENSORS))
    assert header == {"losses": [1.5]}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\2{}",
        b"\0\0\0\1",
        pack({}, {"real": torch.ones(3)}).replace(b"[{}, []]", b"[{},[1]]"),
        pack({}, {"real": torch.ones(3)}).replace(b"[{}, []]", b"[[], []]"),
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(MalformedError, match="not an answer of a rank of ours"):
        unpack(data)
