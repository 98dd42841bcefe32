"""Processes of a training that join, end, and lose each other."""

import pytest
from torch import distributed

from altalign.errors import AltalignError
from altalign.train.run.ranks import Ranks, joined


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A second process that is not there: nothing is joined, and what is left is told."""
    told: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: told.append("left"))
    return told


def test_processes_leave_together_at_the_end(left: list[str]) -> None:
    with joined("cpu") as ranks:
        assert (ranks.rank, ranks.ranks, ranks.is_first) == (1, 2, False)
        assert left == []
    assert left == ["left"]


def test_after_an_error_nobody_waits_for_the_others_to_leave(left: list[str]) -> None:
    with pytest.raises(ValueError, match="a tar is cut"), joined("cpu"):
        raise ValueError("a tar is cut")
    assert left == []


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
        distributed.DistBackendError("NCCL error: remote process exited"),
    ],
)
def test_a_process_that_lost_another_says_so_in_one_line(left: list[str], error: RuntimeError) -> None:
    with pytest.raises(AltalignError, match="another process of this training has ended"), joined("cpu"):
        raise error
    assert left == []


def test_other_errors_stay_what_they_are(left: list[str]) -> None:
    with pytest.raises(RuntimeError, match="out of range"), joined("cpu"):
        raise RuntimeError("index out of range")


@pytest.mark.parametrize(
    ("rank", "of_machine", "expected"),
    [
        (0, "0", ["make", "wait", "wait"]),
        (1, "1", ["wait", "wait", "make"]),
        (2, "0", ["wait", "make", "wait"]),  # of another machine, which may have a disk of its own
        (3, "1", ["wait", "wait", "make"]),
    ],
)
def test_the_first_makes_what_the_others_wait_for(
    rank: int, of_machine: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setenv("LOCAL_RANK", of_machine)
    monkeypatch.setattr(Ranks, "wait", lambda _: order.append("wait"))
    made = Ranks(rank, 4, device=None).first_then_others(lambda: order.append("make") or "made")  # type: ignore[arg-type]
    assert made == "made"
    assert order == expected
