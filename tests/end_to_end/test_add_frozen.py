"""`altalign add --mode frozen`: tables and old verdicts stay, and what comes is judged as a plain loop does."""

import shutil
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data import lineage
from altalign.data.reasons import DropReason
from altalign.dedup import hash_tables
from tests.end_to_end.inputs import IMAGE_LIMITS, Part, drawn, pictures, placed, with_pictures, write_parts
from tests.end_to_end.oracle import assert_counts, assert_finished, assert_judged, assert_tables, curate, read_sidecars
from tests.end_to_end.runs import tree
from tests.end_to_end.test_add import by_key, config, counted, shards
from tests.end_to_end.test_add import write_parts as write_tables
from tests.reference import curation
from tests.reference.curation import Candidate, Settings, tables
from tests.strategies import pools

pytestmark = pytest.mark.runs

NEW = "images.parquet"


@cache
def rows() -> list[Candidate]:
    """Some hundred candidates of tables, whose texts and images occur again and again."""
    every = [row for pool in drawn(pools(max_size=40), 150) for row in pool]
    return [replace(row, decode_entities=False, page_url=row.page_url or "https://p.example/") for row in every]


def in_waves(turn: int) -> list[Part]:
    """A table of images and one of text, and two tables of images that come later."""
    found = with_pictures(rows()[turn::3], turn)
    cut = len(found) // 8
    names = {"north": NEW, "south": "parquet"}
    before = [
        Part(name, form, found[at * 3 * cut : (at + 1) * 3 * cut]) for at, (name, form) in enumerate(names.items())
    ]
    return [*before, Part("north", NEW, found[6 * cut : 7 * cut]), Part("north", NEW, found[7 * cut :])]


def found_in_waves(parts: Sequence[Part], settings: Settings, waves: Sequence[int]) -> curation.Curation:
    """What the plain loop leaves; an image that no file had does not come with a later one."""
    candidates, images = placed(parts)
    first = dict[str, int]()
    for candidate in candidates:
        if candidate.identity is not None and candidate.image_sha256 is not None:
            first.setdefault(candidate.identity, candidate.position)
    kept = [o for o in curation.judge(pool_of(parts), settings, waves) if not o.failed]
    wave_of = dict[str, int]()
    for outcome in kept:
        wave = bisect_right(waves, outcome.candidate.position)
        wave_of[outcome.identity or ""] = min(wave, wave_of.get(outcome.identity or "", wave))
    facts = {
        identity: picture.facts
        for identity, picture in images.items()
        if bisect_right(waves, first[identity]) <= wave_of.get(identity, 0)
    }
    return curation.run(candidates, facts, settings, waves)


SETTINGS = Settings(
    words_at_least=1,
    words_at_most=6,
    images_per_text_at_most=6,
    vocabulary_size=60,
    texts_per_image_at_most=30,
    **IMAGE_LIMITS,
    blocked_hashes=pictures()["blocked"].facts.hashes,
)


@pytest.mark.parametrize("turn", range(3))
def test_what_comes_is_judged_by_the_tables_of_what_was_there(turn: int, tmp_path: Path) -> None:
    parts = in_waves(turn)
    inputs, numbers = write_parts(tmp_path, parts), np.cumsum([0, *(len(part.candidates) for part in parts)]).tolist()
    run = curate(tmp_path, inputs[:2], SETTINGS)
    old_rows = {row["key"]: {**row, "tar_offset": None} for row in read_sidecars(run)}
    for end in (3, 4):
        with chdir(tmp_path):
            path = inputs[end - 1]["paths"][0]
            assert main(["add", "run", "--input", path, "--like", "north", "--mode", "frozen"]) == 0
            assert main(["audit", "run"]) == 0
        expected = found_in_waves(parts[:end], SETTINGS, numbers[2:end])
        assert_judged(run, expected, parts[:end])
        assert_counts(run, expected)
        assert {o.key for o in expected.kept} == by_key(str(run)).keys()
        assert by_key(str(run)).items() >= old_rows.items()
    drift_is_that_of_the_loop(run, parts, numbers)
    words = tables(pool_of(parts), SETTINGS).words_per_row  # these alone are counted of all
    assert_tables(run, replace(tables(pool_of(parts[:2]), SETTINGS), words_per_row=words), SETTINGS)
    with chdir(tmp_path):
        assert main(["merge", "run"]) == 0
    assert_finished(run, expected, placed(parts)[1])


def pool_of(parts: Sequence[Part]) -> list[Candidate]:
    return [outcome.candidate for outcome in curation.extract(placed(parts)[0]) if not outcome.failed]


def drift_is_that_of_the_loop(run: Path, parts: Sequence[Part], numbers: Sequence[int]) -> None:
    """What the second addition says of the drift, against judging its rows by the tables of all."""
    pool = pool_of(parts)
    of_old, of_all = (
        [o.failed not in ([], [DropReason.PAIR_REPEATED]) for o in curation.judge(pool, SETTINGS, waves)]
        for waves in (numbers[2:3], ())
    )
    new = [number for number, candidate in enumerate(pool) if candidate.position >= numbers[3]]
    rows = {
        "are": len(new),
        "kept": sum(not of_old[number] for number in new),
        "would_come": sum(of_old[number] and not of_all[number] for number in new),
        "would_go": sum(of_all[number] and not of_old[number] for number in new),
    }
    said: Any = lineage.of_run(str(run)).settings
    assert said["mode"] == "frozen"
    assert said["drift"]["rows"] == rows
    facts = [tables(some, SETTINGS) for some in ([c for c in pool if c.position < numbers[2]], pool)]
    for kind, name in {"ngrams": "vocabulary", "texts": "over_shared_texts", "images": "over_captioned_images"}.items():
        a, b = ((getattr(each, name) or {}).keys() for each in facts)
        assert said["drift"][kind] == {"are": len(a), "would_come": len(b - a), "would_go": len(a - b)}


# Near-duplicates, what follows ----------------------------------------------------------------------------------------

FROZEN = ["add", "run", "--like", "pictures", "--mode", "frozen", "--input"]
WITHIN = {"[shards]": '[dedup]\nwithin_pool = "keep_one_image"\n\n[shards]'}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six tables, and a run of the first three that looks for near-duplicates in the pool."""
    folder = tmp_path_factory.mktemp("made")
    tables_of = write_tables(folder, seed=4)
    with chdir(folder):
        assert main(["curate", config("run", tables_of[:3], WITHIN)]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, of its own."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here" / "run"


def gone(run: Path) -> dict[str, tuple[Any, ...]]:
    """Images that the stage decontaminate has dropped: why, and for what."""
    rows = [
        row for path in (run / "dropped" / "decontaminate").glob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    return {row["image_id"]: (row["reason"], row["kept_key"], row["test_image"]) for row in rows}


@pytest.mark.everyday
def test_images_of_before_stay_for_those_that_come(run: Path) -> None:
    old, went = by_key("run"), gone(run)
    assert went
    for number in (3, 4, 5):
        assert main([*FROZEN, f"input/part-{number}.parquet"]) == 0
        assert main(["audit", "run"]) == 0
        now = by_key("run")
        assert now.items() >= old.items()
        assert gone(run).items() >= went.items()
        ids = {row["image_id"] for row in now.values()}
        assert not ids & gone(run).keys()
        assert all(kept in now for _, kept, _ in gone(run).values() if kept)
        old, went = now, gone(run)


def test_exact_after_frozen_is_one_run_over_all(run: Path) -> None:
    for number, mode in ((3, "frozen"), (4, "frozen"), (5, "exact")):
        words = ["add", "run", "--input", f"input/part-{number}.parquet", "--like", "pictures", "--mode", mode]
        assert main(words) == 0
    assert not Path("run", "tables", "frozen.json").exists()
    assert main(["merge", "run"]) == 0
    assert main(["curate", config("fresh", [f"input/part-{number}.parquet" for number in range(6)], WITHIN)]) == 0
    assert Path("run", "files.jsonl").read_bytes() == Path("fresh", "files.jsonl").read_bytes()
    assert counted("run") == counted("fresh")


def test_compact_has_the_bytes_of_the_stage_write_run_anew(run: Path) -> None:
    assert main([*FROZEN, "input/part-3.parquet"]) == 0
    shutil.copytree("run", "other")
    assert main(["merge", "run"]) == 0
    assert main(["curate", "other/config.toml", "--set", 'run.folder="other"', "--rerun", "write"]) == 0
    assert shards("run") == shards("other")
    assert by_key("run") == by_key("other")


def test_verdicts_of_before_are_not_made_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    real = hash_tables.HashTable.measure_rows
    monkeypatch.setattr(hash_tables.HashTable, "measure_rows", lambda *args: seen.append("rows") or real(*args))
    judged = {path.name: path.stat().st_ino for path in Path("run", "dropped", "judge").glob("0*.parquet")}
    assert main([*FROZEN, "input/part-3.parquet"]) == 0
    now = {path.name: path.stat().st_ino for path in Path("run", "dropped", "judge").glob("0*.parquet")}
    assert judged
    assert now.items() >= judged.items()
    assert len(seen) <= 3  # by the old tables, by those of all, and once more as it is judged


def test_frozen_needs_work(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "run"]) == 0
    before = tree(Path("run"))
    capsys.readouterr()
    assert main([*FROZEN, "input/part-3.parquet"]) == 2
    assert "work/ is gone, by which verdicts could stay; add with --mode exact" in capsys.readouterr().err
    assert tree(Path("run")) == before


def test_units_that_are_damaged_are_not_taken_over(run: Path) -> None:
    shutil.copytree("run", "other")
    for ending in ("tables/units/*.spill", "judge/units/*.survivors"):
        damaged = next(Path("run", "work").glob(ending))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    for name in ("run", "other"):
        assert main(["add", name, *FROZEN[2:], "input/part-3.parquet"]) == 0
    assert tree(Path("run")) == tree(Path("other"))
