"""An answer of a rank survives its trip, and is taken for none where a fact in it is of another type."""

import json
import struct
from dataclasses import replace

import pytest
import torch

from conformance.protocol.codec import MalformedError, pack
from conformance.protocol.messages import Answer, ClosureCall, Happening, Observation
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import under

SEEN = Observation(
    {},
    losses=[1.0, float("inf")],
    happenings=[
        [Happening("began"), Happening("launched", 1, "all_reduce", 16, "float32", "0", 3, elsewhere=True)],
        [],
    ],
    closures=[ClosureCall(1, True, None, 1.0), ClosureCall(2, False, 2.0, 1.0)],
    hooks=[1, 2],
    moved=["w"],
    offers_module=True,
    process_bytes=3,
)
WRONG = {
    "state_bytes": "many",
    "process_bytes": 2.5,
    "losses": [None],
    "hooks": 3,
    "moved": [1],
    "offers_module": 1,
    "happenings": [[vars(replace(SEEN.happenings[0][1], number="3"))]],
    "closures": [vars(replace(SEEN.closures[1], returned="2"))],
    "stubbed": "torch",
}


def sent(answer, **facts):
    """The bytes of an answer with other facts."""
    body = answer.encode()
    (length,) = struct.unpack_from(">I", body)
    header, complex_ones = json.loads(body[4 : 4 + length])
    head = json.dumps([header | facts, complex_ones]).encode()
    return struct.pack(">I", len(head)) + head + body[4 + length :]


def test_an_answer_survives_its_trip():
    assert Observation.decode(sent(SEEN)) == SEEN


@pytest.mark.parametrize("name", WRONG)
def test_a_fact_of_another_type_makes_it_no_answer(name):
    with pytest.raises(MalformedError, match=f"its {name} is "):
        Observation.decode(sent(SEEN, **{name: WRONG[name]}))


def test_a_fact_that_nobody_asked_for_makes_it_no_answer():
    with pytest.raises(MalformedError):
        Answer.decode(sent(Answer({}), points=5))


def test_a_fact_that_lacks_makes_it_no_answer():
    with pytest.raises(MalformedError, match="it has no borrowed"):
        Answer.decode(pack({"unawaited": [], "stubbed": []}, {}))
    short = replace(SEEN, happenings=[[]])
    assert short.missing(Scenario(steps=2))[0] == "happenings"


def test_a_tensor_that_was_not_sent_is_named():
    answer = Answer.decode(sent(Answer({"rate": torch.ones(1)})))
    assert answer.tensors["rate"] == 1
    for tensors in (answer.tensors, under(answer.tensors, "")):
        with pytest.raises(MalformedError, match="it has no tensor 'size'"):
            tensors["size"]
