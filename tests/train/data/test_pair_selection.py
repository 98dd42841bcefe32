"""Which pairs are trained on by a condition, and by how much: as duckdb finds them, whatever the shards."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.errors import UnreadableError, UsageError
from altalign.train.data.index import is_held_out
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.training_data import samples_of
from altalign.train.settings.training import DataSettings, TrainConfig
from tests.support.run_folders import Pair, pairs, write_run, write_score

TYPES: Mapping[str, pa.DataType] = {"clean": pa.float32(), "language": pa.string()}
WHERE = "clean >= 0.25 AND (language = 'en' OR source = 'b') AND NOT caption LIKE '%7%'"


def values(of: list[Pair], *, nulls: bool) -> dict[str, dict[str, Any]]:
    """A number from 0 to 1 and a language for each pair; with nulls, a fifth of the numbers is missing."""
    rng = np.random.default_rng(7)
    numbers = np.round(rng.random(len(of)) * 16) / 16
    missing = rng.random(len(of)) < 0.2 * nulls
    return {
        pair.key: {"clean": None if is_missing else float(number), "language": rng.choice(["en", "de", "und"]).item()}
        for pair, number, is_missing in zip(of, numbers, missing, strict=True)
    }


def scored(folder: Path, *, count: int = 80, nulls: bool = False) -> tuple[str, list[Pair]]:
    of = pairs(count, images=count // 2, sources=("a", "b"))
    run = write_run(folder, of)
    write_score(run, "clean", values(of, nulls=nulls), TYPES)
    return run, of


def keys(samples: Samples) -> list[str]:
    return [key_of(row) for row in samples.pairs(np.arange(len(samples), dtype=np.int64))]


def rows(run: str) -> pa.Table:
    tables = []
    for path in sorted(Path(run, "shards").glob("*.parquet")):
        table, score = pq.read_table(path), pq.read_table(Path(run, "scores", "clean", path.name))
        for name in TYPES:
            table = table.append_column(name, score[name])
        tables.append(table)
    return pa.concat_tables(tables)


def wanted(run: str, condition: str, held_out: float = 0.0) -> set[str]:
    """The keys that duckdb finds, without those of images that are held out."""
    with duckdb.connect() as connection:
        connection.register("rows", rows(run))
        found = connection.execute(f"SELECT key, image_id FROM rows WHERE {condition}").fetchall()
    ids = np.array([int(image[:16], 16) for _, image in found], np.uint64)
    return {key for (key, _), out in zip(found, is_held_out(ids, held_out), strict=True) if not out}


def test_pairs_are_those_that_duckdb_finds_and_those_that_are_held_out_stay(tmp_path: Path) -> None:
    run, _ = scored(tmp_path / "run")
    every = Samples.open(str(tmp_path / "every"), [run], held_out=0.3)
    found = Samples.open(str(tmp_path / "found"), Runs([run], DataSettings(where=WHERE)), held_out=0.3)
    assert set(keys(found)) == wanted(run, WHERE, 0.3)
    assert 5 < len(found) < len(every) - 5
    assert [each.name for each in found.held_out()] == [each.name for each in every.held_out()]
    assert sorted(found.facts["chosen"].items()) == [("kept", len(found)), ("where", len(every) - len(found))]
    captions = [caption for part in found.captions() for caption in part]
    assert sorted(captions) == sorted(caption for _, caption in found.read(found.pairs(np.arange(len(found)))))


@pytest.mark.parametrize(("nulls", "condition"), [("drop", WHERE), ("keep", f"({WHERE}) IS NOT FALSE")])
def test_pairs_without_a_value_go_or_stay_as_the_settings_say(nulls: Any, condition: str, tmp_path: Path) -> None:
    run, _ = scored(tmp_path / "run", nulls=True)
    found = Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(where=WHERE, nulls=nulls)))
    assert set(keys(found)) == wanted(run, condition)
    assert (found.facts["chosen"].get("missing", 0) > 0) == (nulls == "drop")


@pytest.mark.parametrize(
    "data", [DataSettings(where=WHERE), DataSettings(where=WHERE, weight_by="clean")], ids=["plain", "weighted"]
)
def test_fewer_pairs_are_those_of_the_smallest_keys_among_the_chosen(data: DataSettings, tmp_path: Path) -> None:
    run, _ = scored(tmp_path / "run")
    there = sorted(wanted(run, WHERE))
    for number in (3, 9):
        samples = Samples.open(str(tmp_path / f"index-{number}"), Runs([run], data), pairs=number)
        assert sorted(keys(samples)) == there[:number]
    with pytest.raises(UsageError, match=rf"there are {len(there)} that"):
        Samples.open(str(tmp_path / "index"), Runs([run], data), pairs=len(there) + 1)


def test_weights_follow_their_pairs_and_pairs_without_weight_are_left_out(tmp_path: Path) -> None:
    run, of = scored(tmp_path / "run", nulls=True)
    known = values(of, nulls=True)
    samples = Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(weight_by="clean", nulls="drop")))
    weighted = {key: each["clean"] for key, each in known.items() if each["clean"]}
    assert set(keys(samples)) == set(weighted)
    missing = sum(each["clean"] is None for each in known.values())
    assert samples.facts["chosen"] == {
        "kept": len(weighted),
        "missing": missing,
        "weight": len(of) - missing - len(weighted),
    }
    numbers = iter(keys(samples))
    for name, size in samples.sources.items():
        sums = np.cumsum([weighted[next(numbers)] for _ in range(size)])
        assert samples.weights[name].total == sums[-1]
        points = np.linspace(0, 1, 1000, endpoint=False)
        expected = [next(place for place, at in enumerate(sums) if at > point * sums[-1]) for point in points]
        assert samples.weights[name].at(points).tolist() == expected


def test_other_scores_later_are_noticed(tmp_path: Path) -> None:
    run, of = scored(tmp_path / "run", nulls=True)
    data = {"runs": [run], "where": "clean >= 0.5", "nulls": "drop", "held_out": 0.1}
    sections = {"run": {"folder": str(tmp_path / "model")}, "data": data}
    config = TrainConfig.from_values(sections, where="test")
    samples = samples_of(config)
    assert samples.facts["chosen"].keys() == {"kept", "where", "missing"}
    before = samples.runs.scores
    assert list(before) == [f"{run}/scores/clean"]
    shutil.rmtree(Path(run, "scores"))
    write_score(run, "clean", values(of[::-1], nulls=True), TYPES)
    again = samples_of(config)
    assert again.runs.scores != before
    assert set(keys(again)) == wanted(run, "clean >= 0.5", 0.1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSettings(where="cleen > 1"), r"^\[data\] where: .*run: no column 'cleen' \(there are: .*clean.*\)$"),
        (DataSettings(where="language > 1"), r"^\[data\] where: .*run: language is text, and 1 is a number; compare"),
        (DataSettings(weight_by="cleen"), r"^\[data\] weight_by: .*run: no column 'cleen'"),
        (DataSettings(weight_by="language"), r"^\[data\] weight_by: .*run: language is text; give a column of numbers"),
        (
            DataSettings(where="clean > 0"),
            r"run: clean has no value in \d+ samples; say what becomes of those: \[data\] nulls = ",
        ),
        (DataSettings(weight_by="clean"), r"run: clean has no value in \d+ samples; say what becomes"),
        (DataSettings(where="extra.alt = 'x'"), r"no column 'extra.alt'"),
        (
            DataSettings(weight_by="clean", nulls="keep"),
            r'shards/0000\d: no value, and nulls = "keep" gives no weight; give "drop"$',
        ),
    ],
)
def test_what_cannot_be_asked_is_one_line(data: DataSettings, message: str, tmp_path: Path) -> None:
    run, _ = scored(tmp_path / "run", nulls=True)
    with pytest.raises(UsageError, match=message):
        Samples.open(str(tmp_path / "index"), Runs([run], data))


def test_weights_below_0_and_scores_that_do_not_fit_the_shards_are_refused(tmp_path: Path) -> None:
    run, of = scored(tmp_path / "run")
    below = {pair.key: {"clean": -0.5, "language": "en"} for pair in of}
    shutil.rmtree(Path(run, "scores"))
    write_score(run, "clean", below, TYPES)
    with pytest.raises(UsageError, match=r"shards/00000: -0.5; give a column of numbers that are 0 or more$"):
        Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(weight_by="clean")))
    path = Path(run, "scores", "clean", "00003.parquet")
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(UsageError, match=r"1 of 8 shards are not measured, such as 00003; run `altalign score`"):
        Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(where="clean < 0")))
    path.write_bytes(data[:-9] + b"123456789")
    with pytest.raises(UnreadableError, match=r"00003.parquet: not as it was written"):
        Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(where="clean < 0")))


def test_a_condition_that_is_none_is_a_mistake_in_the_settings() -> None:
    for data, said in (
        ({"where": "clean >"}, r"^test \[data\] where: not understood at character 7"),
        ({"nulls": "drop"}, r"^test \[data\]: nulls without where or weight_by"),
    ):
        with pytest.raises(UsageError, match=said):
            TrainConfig.from_values({"data": data}, where="test")
