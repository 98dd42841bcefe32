"""Marks are there, in files of their own or in bundles, and a bundle changes nothing that is read."""

from pathlib import Path
from typing import Any

import pytest

from altalign import storage
from altalign.data import unit_marks
from altalign.data.unit_marks import UnitMarks
from altalign.errors import UnreadableError
from tests.object_stores.servers import Server


def mark_of(name: str) -> dict[str, Any]:
    return {"unit": name, "rows": len(name), "text": '漢\n\r"}\u2028', "files": {f"work/{name}": [1, "d" * 32]}}


def written(folder: Path, names: list[str]) -> UnitMarks:
    marks = UnitMarks(str(folder))
    for name in names:
        storage.write_sealed(marks.path(name), mark_of(name))
    return marks


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_marks, "BUNDLED", 3)


NAMES = ["000002", "000010-2", "000010-10", "000011", "000012", "000013", "1000000"]


def test_units_are_finished_by_their_marks_alone_in_the_order_of_numbers(tmp_path: Path) -> None:
    for name in (
        "000010-2.json",
        "000010-10.json",
        "000002.json",
        "done.json",
        "000003.json.partial-0123abcd",
        "000004.json~",
        "copy of 000005.json",
    ):
        (tmp_path / name).touch()
    assert UnitMarks(str(tmp_path)).names() == ["000002", "000010-2", "000010-10"]


@pytest.mark.parametrize("is_known", [True, False], ids=["the one who bundled", "another process"])
def test_bundled_marks_are_those_that_were_written(tmp_path: Path, *, is_known: bool) -> None:
    marks = written(tmp_path, NAMES)
    before = {name: marks.read(name) for name in NAMES}
    marks.bundle()
    assert len(storage.names(str(tmp_path), ".json")) == 1  # two bundles of three; one is too few for another
    assert len(storage.names(str(tmp_path / "bundled"), ".json")) == 2
    marks = marks if is_known else UnitMarks(str(tmp_path))
    assert {name: marks.read(name) for name in NAMES} == before == {name: mark_of(name) for name in NAMES}
    assert marks.names() == NAMES
    assert list(marks.items(NAMES)) == list(before.items())
    assert marks.read("000003") == {}


@pytest.mark.stores
def test_a_store_is_asked_for_a_bundle_once_and_again_once_it_is_another(s3: Server) -> None:
    marks = UnitMarks(f"{s3.url}/marks")
    for name in NAMES:
        storage.write_sealed(marks.path(name), mark_of(name))
    marks.bundle()
    assert [marks.read(name) for name in NAMES] == [mark_of(name) for name in NAMES]
    marks.drop(NAMES[:2])
    assert marks.names() == NAMES[2:]
    assert [marks.read(name) for name in NAMES] == [{}, {}, *map(mark_of, NAMES[2:])]
    storage.delete_units([f"{s3.url}/marks"])
    assert marks.names() == []
    assert marks.read(NAMES[2]) == {}


def test_who_looked_before_marks_were_bundled_finds_them(tmp_path: Path) -> None:
    marks, other = written(tmp_path, NAMES[:3]), UnitMarks(str(tmp_path))
    assert other.read(NAMES[0]) == mark_of(NAMES[0])
    marks.bundle()
    assert other.read(NAMES[0], again=True) == mark_of(NAMES[0])
    assert other.found() == {*NAMES[:3]}


def test_marks_that_were_deleted_are_not_found_whoever_knew_of_them(tmp_path: Path) -> None:
    marks = written(tmp_path, NAMES[:3])
    marks.bundle()
    storage.delete_units([str(tmp_path)])
    assert marks.read(NAMES[0]) == {}
    assert marks.names() == []


def test_whoever_is_killed_before_the_files_of_a_bundle_go_has_each_mark_once(tmp_path: Path) -> None:
    written(tmp_path, NAMES[:3]).bundle()
    marks = written(tmp_path, NAMES[:3])
    assert marks.names() == NAMES[:3]
    marks.bundle()
    assert (len(storage.names(str(tmp_path), ".json")), marks.names()) == (0, NAMES[:3])
    assert len(storage.names(str(tmp_path / "bundled"), ".json")) == 1  # the same marks are the same bundle


def test_a_mark_that_came_into_two_bundles_is_dropped_from_both(tmp_path: Path) -> None:
    """Somebody was killed between the bundle without a mark and the deletion of the one with it."""
    written(tmp_path, NAMES[:3]).bundle()
    first = next(iter((tmp_path / "bundled").iterdir()))
    kept = first.read_bytes()
    marks = UnitMarks(str(tmp_path))
    marks.drop([NAMES[0]])
    first.write_bytes(kept)
    marks.drop([NAMES[1]])
    for each in (marks, UnitMarks(str(tmp_path))):
        assert each.read(NAMES[1]) == {}
        assert NAMES[1] not in each.names()
    written(tmp_path, [NAMES[1]])
    assert UnitMarks(str(tmp_path)).read(NAMES[1]) == mark_of(NAMES[1])


def test_a_file_that_a_bundle_has_already_comes_into_no_other(tmp_path: Path) -> None:
    """Somebody was killed before all files of a bundle were deleted."""
    written(tmp_path, NAMES[:3]).bundle()
    marks = written(tmp_path, NAMES[2:6])
    marks.bundle()
    assert marks.names() == NAMES[:6]
    assert storage.names(str(tmp_path), ".json") == []
    held = [
        path.read_text(encoding="utf-8").count(f'"unit": "{NAMES[2]}"') for path in (tmp_path / "bundled").iterdir()
    ]
    assert sum(held) == 1


def test_a_dropped_mark_leaves_its_bundle_and_the_others_stay(tmp_path: Path) -> None:
    marks = written(tmp_path, NAMES)
    marks.bundle()
    marks.drop([NAMES[1], NAMES[-1]])
    left = [name for name in NAMES if name not in (NAMES[1], NAMES[-1])]
    for each in (marks, UnitMarks(str(tmp_path))):
        assert each.names() == left
        assert list(each.items(left)) == [(name, mark_of(name)) for name in left]
    marks.drop(left)
    assert storage.files_below(str(tmp_path)) == []


def test_one_bit_changed_in_a_bundle_is_noticed_and_dropping_it_has_its_units_done_anew(tmp_path: Path) -> None:
    written(tmp_path, NAMES[:3]).bundle()
    marks = written(tmp_path, NAMES[3:4])
    [bundle] = (tmp_path / "bundled").iterdir()
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    for read in (marks.names, marks.found, lambda: UnitMarks(str(tmp_path)).read(NAMES[0])):
        with pytest.raises(UnreadableError, match=f"^{bundle}: not as it was written"):
            read()
    damaged = dict[str, str]()
    assert marks.names(damaged) == NAMES[3:4]
    assert damaged == {f"bundled/{bundle.stem}": "not as it was written: its seal is of other bytes"}
    marks.drop(list(damaged))
    assert (marks.names(), bundle.exists()) == (NAMES[3:4], False)


def test_a_damaged_mark_is_not_bundled_and_those_around_it_are_read(tmp_path: Path) -> None:
    marks = written(tmp_path, NAMES[:3])
    Path(marks.path(NAMES[1])).write_bytes(b"{}")
    with pytest.raises(UnreadableError, match=rf"{NAMES[1]}\.json: not as it was written"):
        marks.bundle()
    assert len(storage.names(str(tmp_path), ".json")) == 3
    damaged = dict[str, UnreadableError]()
    assert [name for name, _ in marks.items(NAMES[:3], damaged)] == [NAMES[0], NAMES[2]]
    assert list(damaged) == [NAMES[1]]
