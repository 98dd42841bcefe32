"""A change of a run is there as a whole or not at all, wherever it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from altalign import storage
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.storage import atomic_change, local
from altalign.storage.atomic_change import Change

OLD = {"manifest.json": b"old", "shards/00000.tar": b"a", "shards/00001.tar": b"b", "work/units/0.json": b"{}"}
NEW = {"manifest.json": b"new", "shards/00000.tar": b"A", "removed.parquet": b"r"}


ADDED = {"manifest.json": b"new", "shards/00000.tar": b"A", "shards/00001.tar": b"b", "work/units/1.json": b"{1}"}


class Killed(BaseException):
    """Ends a command as a signal does: nobody catches it."""


def files(run: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith((".change/", "log/"))}


def old_run(run: Path) -> Path:
    for name, data in OLD.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)
    return run


def change(run: Path) -> None:
    prepared = Change(str(run), durable=True)
    for name, data in NEW.items():
        with prepared.writing(name) as file:
            file.write(data)
    prepared.commit(["work", "shards/00001.tar", "not/there"])


def addition(run: Path) -> None:
    """A change whose files lie in a run inside, `work/` among them."""
    inside = run / atomic_change.ADDING / "run"
    for name in ADDED:
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_bytes(ADDED[name])
    prepared = Change(str(run), durable=True)
    for name in ("manifest.json", "shards/00000.tar"):
        prepared.take(name, str(inside / name), storage.Written(len(ADDED[name]), ""))
    prepared.commit(["trial"], work=f"{atomic_change.ADDING}/run/work")


def killed_at(point: int, work: Callable[[], None], patch: pytest.MonkeyPatch) -> bool:
    """Whether work was ended before its n-th step on the disk, a half file left behind where it was writing one."""
    seen = 0

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == point:
                raise Killed
            return real(*args, **more)

        return step

    with patch.context() as context:
        for name in ("write", "move", "link", "delete", "delete_file"):
            context.setattr(local, name, stepping(getattr(local, name)))
        try:
            work()
        except Killed:
            return True
    return False


def test_a_change_that_ends_anywhere_leaves_the_old_run_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, run = list[bool](), tmp_path
    for point in range(1, 100):
        run = old_run(tmp_path / str(point))
        is_killed = killed_at(point, lambda run=run: change(run), monkeypatch)
        atomic_change.settle(str(run))
        assert files(run) in (OLD, NEW)
        ends.append(files(run) == NEW)
        if not is_killed:
            break
    assert ends == sorted(ends)  # old up to a point, then new
    assert len(ends) > 10
    assert not ends[0]
    assert not (run / ".change").exists()


def test_an_addition_that_ends_anywhere_leaves_the_old_run_or_the_new_one_with_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[bool]()
    for point in range(1, 100):
        run = old_run(tmp_path / str(point))
        is_killed = killed_at(point, lambda run=run: addition(run), monkeypatch)
        atomic_change.settle(str(run))
        there = {name: data for name, data in files(run).items() if not name.startswith(atomic_change.ADDING)}
        assert there in (OLD, ADDED)
        ends.append(there == ADDED)
        if ends[-1]:
            assert not (run / atomic_change.ADDING).exists()
        if not is_killed:
            break
    assert ends == sorted(ends)
    assert len(ends) > 8
    assert not ends[0]


@pytest.mark.parametrize(("made", "new"), [(change, NEW), (addition, ADDED)])
def test_finishing_a_change_may_end_anywhere_too(
    made: Callable[[Path], None], new: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in range(1, 100):
        run = old_run(tmp_path / str(point))
        decided = next(
            n for n in range(4, 100) if killed_at(n, lambda run=run: made(run), monkeypatch) and decided_in(run)
        )
        assert decided
        is_killed = killed_at(point, lambda run=run: atomic_change.settle(str(run)), monkeypatch)
        atomic_change.settle(str(run))
        assert {name: of for name, of in files(run).items() if not name.startswith(atomic_change.ADDING)} == new
        if not is_killed:
            return
    pytest.fail("it never came to its end")


def decided_in(run: Path) -> bool:
    return (run / ".change" / "change.json").exists()


def test_what_an_undecided_change_has_left_goes_with_the_next(tmp_path: Path) -> None:
    run = old_run(tmp_path / "run")
    left = run / ".change" / "shards" / "00007.tar"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a killed command")
    atomic_change.settle(str(run))
    assert files(run) == OLD
    change(run)
    assert files(run) == NEW


def test_a_change_is_not_finished_while_another_command_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = old_run(tmp_path / "run")
    assert any(killed_at(n, lambda: change(run), monkeypatch) and decided_in(run) for n in range(5, 100))
    with storage.locked(str(run)), pytest.raises(UsageError, match="another command is at work"):
        atomic_change.settle(str(run))
    with pytest.raises(UsageError, match="another command has changed it meanwhile"):
        atomic_change.check_none(str(run))
    atomic_change.settle(str(run))
    assert files(run) == NEW


@pytest.mark.parametrize("harm", ["lost", "edited"])
def test_a_damaged_change_is_an_error_and_not_half_a_run(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = old_run(tmp_path / "run")
    assert any(killed_at(n, lambda: change(run), monkeypatch) and decided_in(run) for n in range(5, 100))
    if harm == "lost":
        (run / ".change" / "removed.parquet").unlink()
    else:
        (run / ".change" / "change.json").write_bytes(b"{}")
    with pytest.raises((DamagedError, UnreadableError)):
        atomic_change.settle(str(run))
    assert files(run)["manifest.json"] == b"old"
