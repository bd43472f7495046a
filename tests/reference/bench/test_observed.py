"""The observed group is left at the end; a rank that fails reports its own error first."""

from types import SimpleNamespace

import pytest

from reference.bench import observed


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the group, in order; there is no real one."""
    found: list[str] = []
    group = "pytest_ddp.observed.recording.process_group"
    monkeypatch.setattr(observed, "cleanup", lambda: found.append("leave"))
    monkeypatch.setattr(observed.distributed_c10d, "_get_default_store", lambda: None)
    monkeypatch.setattr("pytest_ddp.observed.collectives", lambda: "the record")
    monkeypatch.setattr(f"{group}.observe", lambda _: found.append("observe"))
    monkeypatch.setattr(f"{group}.stop_observing", lambda: found.append("stop"))
    dist = SimpleNamespace(
        get_backend=lambda: "gloo",
        get_rank=lambda: 0,
        get_world_size=lambda: 2,
        PrefixStore=lambda name, _: name,
        init_process_group=lambda *_, store, **__: found.append(f"join {store}"),
    )
    monkeypatch.setattr(observed, "dist", dist)
    return found


def test_the_group_is_left_and_joined_again_before_and_after(order: list[str]) -> None:
    with observed.observed_group() as record:
        assert record == "the record"
        order.append("work")
    before, after = ["leave", "observe", "join observed"], ["leave", "stop", "join after observing"]
    assert order == [*before, "work", *after]


def test_an_error_is_raised_without_waiting_for_other_ranks(order: list[str]) -> None:
    with pytest.raises(ValueError, match="the cause"), observed.observed_group():
        raise ValueError("the cause")
    assert order == ["leave", "observe", "join observed"]
