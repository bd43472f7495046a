"""What belongs to the grader is refused, and nothing that right code does with a model."""

import textwrap
from pathlib import Path

import pytest
from bug import right

from conformance.ranks import guard
from conformance.submissions.location import Location, locate

AVERAGES = """
    import copy, inspect, io, logging, pickle
    import torch
    import torch.distributed as dist

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = self.prepared(module)
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.data, 0)

        def forward(self, *inputs, **options):
            return self.module(*inputs, **options)

        def prepared(self, module):
            {prepared}

    def get_naive_ddp(module):
        return Wrapper(module)

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        for parameter in ddp_model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
    """


@pytest.mark.parametrize(
    "prepared",
    [
        pytest.param("pickle.loads(pickle.dumps(module)); return module", id="pickle"),
        pytest.param("torch.save(module, io.BytesIO()); return copy.deepcopy(module) and module", id="save"),
        pytest.param("inspect.stack(); inspect.getsource(type(module)); return module", id="inspect"),
        pytest.param("logging.getLogger('mine').warning('here'); return module", id="log"),
        pytest.param("return torch.compile(module, backend='eager')", id="compile", marks=pytest.mark.long),
    ],
)
def test_right_code_may_do_with_its_model_what_it_likes(held_to, submit, prepared):
    result = held_to(
        submit(AVERAGES.format(prepared=prepared)), "naive_ddp", "gradients_averaged", world_size=2, examples=2
    )
    assert result.status == "passed", result.message


def test_a_package_that_has_the_name_of_the_references_is_the_submissions_own(held_to, submit):
    folder = submit(
        "from reference.parts.overhead import ddp_overhead, optimal_bucket_size",
        reference__parts__overhead=right("overhead_model")["adapters"],
    )
    assert held_to(folder, "overhead_model", "overhead_after_backward").status == "passed"


def test_who_catches_the_refusal_is_graded_for_what_is_there(grade_path, submit):
    text = "try:\n    from reference.adapters import *\nexcept ImportError:\n    pass\n"
    (component,) = grade_path(
        submit(text + textwrap.dedent(right("overhead_model")["adapters"])), components=["overhead_model"], examples=1
    ).components
    assert component.status == "passed"


HOME = Path(guard.__file__).parents[2]
ALL = ("conformance", "pytest_ddp", "reference")


@pytest.mark.parametrize(("location", "submitted"), [
    (Location("x", "mine", str(HOME / "mine.py"), str(HOME), (str(HOME),)), ()),
    (Location("x", "conformance", "/x/conformance.py", "/x", ("/x", str(HOME))), ()),
    (Location("x", "adapters", "/adapters.py", "/", ("/",)), ()),
    (locate(str(HOME / "reference/adapters.py")), ("reference",)),
    (locate("reference.adapters"), ("reference",)),
])  # fmt: skip
def test_a_submission_owns_the_grader_only_if_the_user_names_it(location, submitted):
    assert tuple(name for name in ALL if guard._is_submitted(name, location)) == submitted


def test_a_submission_in_a_folder_that_holds_the_grader_is_kept_away_from_it(tmp_path, held_to, monkeypatch):
    """As a course in a checkout of the grader, and as a line in pyproject.toml once made any submission."""
    file = tmp_path / "ada" / "adapters.py"
    file.parent.mkdir()
    file.write_text("from reference.adapters import *")
    around = Location(str(file), "adapters", str(file), str(file.parent), (str(file.parent), str(HOME)))
    monkeypatch.setitem(held_to.__globals__, "locate", lambda _: around)
    result = held_to(file, "naive_ddp", "gradients_averaged", world_size=2, examples=1)
    assert result.status == "failed"
    assert "reference belongs to the grader" in result.message
