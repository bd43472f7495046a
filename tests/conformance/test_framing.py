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
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "truths": torch.tensor([True, False]),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "doubles": torch.tensor([[0.1], [-0.0]], dtype=torch.float64),
    "of eight bits": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
}


def test_header_and_tensors_arrive_with_their_dtypes():
    header, tensors = unpack(pack({"losses": [1.5]}, TENSORS))
    assert header == {"losses": [1.5]}
    assert list(tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].tolist() == tensor.tolist()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\2{}",
        b"\0\0\0\1",
        pack({}, {}).replace(b"[{}, []]", b"[{},[1]]"),
        pack({}, {}).replace(b"[{}, []]", b"[[], []]"),
        pack({}, {"real": torch.ones(3)}).replace(b"[3]", b"[4]"),
        pack({}, {"real": torch.ones(3)}).replace(b"[3]", b"[2]"),
        pack({}, {"real": torch.ones(1, 3)}).replace(b"[1, 3]", b"[-1,3]"),
        pack({}, {"real": torch.ones(1, 3)}).replace(b"[1, 3]", b"[1.,3]"),
        pack({}, {"real": torch.ones(3)}).replace(b"float32", b"float99"),
        pack({}, {"real": torch.ones(3)}).replace(b'"real"', b'["re"]'),
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(MalformedError, match="not an answer of a rank of ours"):
        unpack(data)


def test_each_tensor_begins_at_a_multiple_of_the_size_of_its_numbers():
    mixed = {"a": torch.ones(1), "b": torch.ones(3, dtype=torch.float64), "c": torch.ones(2, dtype=torch.complex128)}
    mixed |= {
        "d": torch.ones(3, dtype=torch.bool),
        "e": torch.ones(5, dtype=torch.complex64),
        "f": torch.ones(3).half(),
    }
    for tensor in unpack(pack({}, mixed))[1].values():
        assert tensor.data_ptr() % tensor.element_size() == 0
        assert bool((tensor == 1).all())
