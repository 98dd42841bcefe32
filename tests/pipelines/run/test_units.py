"""Units are done once, and their marks vouch for their files."""

import hashlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_128 as xxh3

from altalign import storage
from altalign.errors import DamagedError, UnreadableError
from altalign.pipelines.run import marks
from altalign.pipelines.run.text_tables import JUDGED as OF_JUDGE
from altalign.pipelines.run.units import InputFile, Marks, Run, Unit, map_unit
from altalign.settings.curate import CurateConfig
from altalign.storage import blocks

FILES = (InputFile(0, "a.parquet", 0), InputFile(1, "b.parquet", 0))


def config(**sections: Any) -> CurateConfig:
    return CurateConfig.from_values({"input": [{"paths": ["*.parquet"], "kind": "table"}], **sections}, where="test")


Rows = namedtuple("Rows", "rows nested note")
Nothing = namedtuple("Nothing", "")
EXTRACTED, JUDGED, COUNTED = (Marks(step, Rows) for step in ("extract", "judge/units", "tables/units"))


def test_a_unit_is_done_once_and_its_mark_answers_from_then_on(tmp_path: Path) -> None:
    run, calls = Run(str(tmp_path), config(), FILES), []

    def work(of: Run, unit: Unit) -> Rows:
        calls.append(unit)
        return Rows(3, [1, [2, "漢"]], None)

    unit = Unit(name="000001-00002")
    assert map_unit(run, JUDGED, unit, work) == map_unit(run, JUDGED, unit, work) == Rows(3, [1, [2, "漢"]], None)
    assert calls == [unit]
    assert storage.read_sealed(run.mark("judge/units", "000001-00002")) == {
        "unit": "000001-00002",
        "rows": 3,
        "nested": [1, [2, "漢"]],
        "files": {},
    }
    assert run.finished("judge/units") == ["000001-00002"]
    assert map_unit(run, COUNTED, unit, work).rows == 3  # another step has marks of its own
    assert calls == [unit, unit]


def test_a_unit_without_facts_of_its_own_is_done_once_too(tmp_path: Path) -> None:
    run, calls = Run(str(tmp_path), config(), FILES), []
    for _ in range(2):
        map_unit(run, Marks("write", Nothing), Unit(name="00000"), lambda *_: calls.append(1) or Nothing())
    assert calls == [1]


def test_work_that_fails_leaves_no_mark_and_is_done_again(tmp_path: Path) -> None:
    run, unit = Run(str(tmp_path), config(), FILES), Unit(name="000000")

    def fail(_: Run, unit: Unit) -> Rows:
        storage.write_bytes(run.work("extract", f"{unit['name']}.parquet"), b"half of it")
        raise UnreadableError("cut")

    with pytest.raises(UnreadableError):
        map_unit(run, EXTRACTED, unit, fail)
    assert run.facts(EXTRACTED, "000000") is None
    with pytest.raises(DamagedError, match=r"000000\.json: damaged: it is not there"):
        run.facts_of(EXTRACTED, "000000")
    assert run.finished("extract") == []
    assert map_unit(run, EXTRACTED, unit, lambda *_: Rows(1, [], "now")).rows == 1
    assert run.facts_of(EXTRACTED, "000000") == Rows(1, [], "now")


def test_finished_units_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = Run(str(tmp_path), config(), FILES)
    names = ["000002", "1000000", "000010-00001", "000002-00000", "000002-100000", "000002-99999"]
    for name in names:
        map_unit(run, EXTRACTED, Unit(name=name), lambda _, unit: Rows(0, [unit["name"]], None))
    for name in ("done", "._000002", "notes"):  # what no unit is
        storage.write_json(run.mark("extract", name), {})
    expected = ["000002", "000002-00000", "000002-99999", "000002-100000", "000010-00001", "1000000"]
    assert run.finished("extract") == expected
    assert [(name, facts.nested) for name, facts in run.all_facts(EXTRACTED)] == [(name, [name]) for name in expected]


# What marks vouch for -------------------------------------------------------------------------------------------------


def vouched_for(run: Run) -> dict[str, tuple[int, str]]:
    """The files that the mark of one unit names, a table of the run and two files that it hands on to itself."""

    def work(of: Run, _: Unit) -> Rows:
        storage.write_bytes(of.path("tables", "a.npy"), b"table")
        storage.write_bytes(of.work("judge", "units", "0.parquet"), b"rows")
        with storage.growing(of.work("judge", "units", "0.images")) as file:
            file.write(b"images")
        return Rows(1, [], None)

    map_unit(run, Marks(OF_JUDGE.step, Rows), Unit(name="0"), work)
    assert marks.look(run) == []
    said = storage.read_sealed(run.mark(OF_JUDGE.step, "0"))["files"]
    return {path: (size, digest) for path, (size, digest) in said.items()}


def test_what_others_read_has_its_sha256_in_the_mark_and_what_the_run_reads_alone_its_xxh3(tmp_path: Path) -> None:
    run = Run(str(tmp_path), config(), FILES)
    assert vouched_for(run) == {
        "tables/a.npy": (5, hashlib.sha256(b"table").hexdigest()),
        "work/judge/units/0.images": (6, xxh3(b"images").hexdigest()),
        "work/judge/units/0.parquet": (4, xxh3(b"rows").hexdigest()),
    }
    for name, written in {"0.images": b"image5", "0.parquet": b"cows"}.items():
        (tmp_path / "work" / "judge" / "units" / name).write_bytes(written)
    assert [why for _, why, _ in marks.look(run)] == [
        f"its XXH3 is {xxh3(now).hexdigest()}, where {xxh3(before).hexdigest()} was written"
        for before, now in ((b"images", b"image5"), (b"rows", b"cows"))
    ]


def test_marks_of_an_earlier_version_have_sha256_of_all_and_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(str(tmp_path), config(), FILES)
    with monkeypatch.context() as patch:
        patch.setattr(blocks.Block, "kind", lambda *_: "SHA-256")
        said = vouched_for(run)
    assert said["work/judge/units/0.parquet"] == (4, hashlib.sha256(b"rows").hexdigest())
    assert marks.look(run) == []
    (tmp_path / "work" / "judge" / "units" / "0.parquet").write_bytes(b"cows")
    ((path, why, _),) = marks.look(run)
    assert (path, why.split(" is ")[0]) == ("work/judge/units/0.parquet", "its SHA-256")
