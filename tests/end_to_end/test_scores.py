"""`altalign score` and `altalign select` on a real run, as a user calls them."""

import io
import json
import math
import shutil
from collections import Counter
from contextlib import chdir
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data import shards
from altalign.filters import concepts
from tests.end_to_end.scored import SCORES, prepared, rows, scores_of
from tests.support.curations import Finished, altalign, killed, refused, tree

pytestmark = pytest.mark.runs

TOP = "text_characters=0.5"
WHERE = "similarity >= -0.2 AND text_characters > 12 AND NOT (picture_entropy < 1 OR language = 'ja')"


def samples_of(run: Path) -> list[shards.Sample]:
    tars = sorted((run / "shards").glob("*.tar"))
    return [sample for tar in tars for sample in shards.samples(io.BytesIO(tar.read_bytes()))]


def selected(folder: Path, out: Path, *args: str) -> Path:
    with chdir(folder):
        assert main(["select", "run", str(out), *args]) == 0
    return out


def fails(folder: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with chdir(folder):
        return refused(capsys, *args)


def duckdb_keys(table: pa.Table, query: str) -> list[str]:
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return [row[0] for row in connection.execute(query).fetchall()]


@pytest.mark.everyday
def test_a_selection_has_the_samples_that_duckdb_finds_with_their_bytes(scored: Path, tmp_path: Path) -> None:
    out, table = selected(scored, tmp_path / "out", "--where", WHERE), rows(scored / "run")
    wanted = duckdb_keys(table, f"SELECT key FROM rows WHERE {WHERE} ORDER BY image_id, key")
    assert 5 < len(wanted) < 130
    found = samples_of(out)
    assert [sample.key for sample in found] == wanted
    before = {sample.key: sample for sample in samples_of(scored / "run")}
    assert all(sample.image == before[sample.key].image for sample in found)
    dropped: Any = pq.read_table(out / "dropped" / "select")
    assert sorted(wanted + dropped["key"].to_pylist()) == sorted(before)
    by_key = {row["key"]: row for row in table.to_pylist()}
    for row in dropped.to_pylist():
        values = by_key[row["key"]]
        failed = [
            *(["not_where:3"] if values["picture_entropy"] < 1 or values["language"] == "ja" else []),
            *(["score_below:similarity"] if values["similarity"] < -0.2 else []),
            *(["score_below:text_characters"] if values["text_characters"] <= 12 else []),
        ]
        assert sorted(row["failed"]) == failed
        assert json.loads(row["scores"])["similarity"] == values["similarity"]
    counts = Counter[str]()
    for entry in pq.read_table(out / "counts.parquet").to_pylist():
        counts[entry["reason"]] += entry["rows"] if entry["stage"] == "select" else 0
    assert counts["kept"] == len(wanted)
    assert sum(counts.values()) == len(before)


def test_a_selection_passes_all_checks_and_says_what_it_is_of(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = selected(scored, tmp_path / "out", "--where", WHERE)
    assert main(["audit", str(out)]) == 0
    assert main(["audit", str(out), "--digest"]) == 0
    lineage = json.loads((out / "manifest.json").read_bytes())["lineage"]
    parent = json.loads((scored / "run" / "manifest.json").read_bytes())["files"]["sha256"]
    assert (lineage["operation"], lineage["parents"], lineage["settings"]["where"]) == ("select", [parent], WHERE)
    assert sorted(lineage["scores"]) == ["language", "picture", "similarity", "text"]
    (name, *_) = sorted((out / "dropped" / "select").iterdir())
    row = pq.read_table(name).to_pylist()[0]
    capsys.readouterr()
    assert main(["explain", str(out), "--key", row["key"]]) == 0
    said = capsys.readouterr().out
    assert f"select        dropped: {row['reason']}" in said
    assert "similarity = " in said
    for words in (["retry", str(out)], ["curate", str(out / "config.toml"), "--repair"]):
        assert "made of another run" in fails(tmp_path, capsys, *words)


def test_a_selection_of_a_selection_counts_on(scored: Path, tmp_path: Path) -> None:
    first = selected(scored, tmp_path / "first", "--where", "text_characters > 12")
    with chdir(tmp_path):
        assert main(["select", "first", "second", "--where", "width > 300"]) == 0
        assert main(["audit", "second"]) == 0
    stages = json.loads((tmp_path / "second" / "summary.json").read_bytes())["stages"]
    before = json.loads((first / "summary.json").read_bytes())["stages"]
    assert stages[-1]["received"] == before[-1]["received"]
    assert stages[-1]["kept"] + sum(stages[-1]["dropped"].values()) == before[-1]["received"]
    assert stages[:-1] == before[:-1]


def keys_of(run: Path) -> set[str]:
    return {row["key"] for row in rows(run).to_pylist()}


@pytest.mark.parametrize("share", ["0.25", "0.5", "1"])
def test_the_largest_share_is_that_of_a_sort(scored: Path, tmp_path: Path, share: str) -> None:
    out = tmp_path / "out"
    selected(scored, out, "--where", "text_characters > 10", "--top", f"similarity={share}")
    kept = sorted(
        (row for row in rows(scored / "run").to_pylist() if row["text_characters"] > 10),
        key=lambda row: -row["similarity"],
    )
    threshold = kept[-(-int(len(kept) * float(share) * 4) // 4) - 1]["similarity"]
    wanted = {row["key"] for row in kept if row["similarity"] >= threshold}
    assert keys_of(out) == wanted


def test_values_that_are_missing_have_to_be_spoken_of(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "image_url LIKE '%1%'"
    said = fails(scored, capsys, "select", "run", str(tmp_path / "x"), "--where", where)
    assert said == "run: image_url may have no value; say what becomes of those: --nulls drop, or --nulls keep"
    found = {}
    for nulls in ("drop", "keep"):
        out = selected(scored, tmp_path / nulls, "--where", where, "--nulls", nulls)
        found[nulls] = keys_of(out)
    table = rows(scored / "run")
    assert found["drop"] == set(duckdb_keys(table, f"SELECT key FROM rows WHERE {where}"))
    assert found["keep"] - found["drop"] == set(duckdb_keys(table, "SELECT key FROM rows WHERE image_url IS NULL"))


def test_what_cannot_be_asked_is_one_line_before_any_work(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*args: str) -> str:
        return fails(scored, capsys, "select", "run", str(tmp_path / "x"), *args)

    assert said().startswith("nothing is asked for; give --where")
    assert said("--where", "simlarity > 1").startswith("--where: no column 'simlarity' (there are: ")
    assert said("--where", "language >").startswith("--where: not understood at character 10")
    assert said("--top", "similarity=2").startswith("--top similarity=2: not of the form COLUMN=SHARE")
    assert said("--top", "language=0.5").startswith("--top language: it is string; give a column of numbers")
    assert not (tmp_path / "x").exists()


def test_scores_follow_the_shards(
    embedded: Finished, scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepared(tmp_path, embedded)
    shutil.copytree(scored / "run" / "scores", folder / "run" / "scores")
    before = scores_of(folder / "run" / "scores")
    manifest = folder / "run" / "scores" / "text" / "manifest.json"
    (folder / "run" / "scores" / "text" / "00002.parquet").unlink()
    said = fails(folder, capsys, "select", "run", "out", "--where", "text_digits < 1")
    assert "1 of 8 shards are not measured, such as 00002; run `altalign score`" in said
    stamps = {path: path.stat().st_mtime_ns for path in manifest.parent.glob("*.parquet")}
    with chdir(folder):
        assert main(["score", "run", "--with", "scores.toml"]) == 0
    assert scores_of(folder / "run" / "scores") == before
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    (folder / "scores.toml").write_text(
        SCORES.replace('kind = "language"', 'kind = "language"\nmargin_at_least = 0.5'), encoding="utf-8"
    )
    assert "language: measured with other settings, files or versions" in fails(
        folder, capsys, "score", "run", "--with", "scores.toml"
    )
    with chdir(folder):
        assert main(["score", "run", "--with", "scores.toml", "--anew"]) == 0
    found = tree(folder / "run")
    assert {name: of for name, of in found.items() if not name.startswith("scores/")} == embedded.tree


@pytest.mark.parametrize("workers", ["1", "3"])
def test_scores_are_the_same_bytes_on_one_worker_or_more(
    embedded: Finished, scored: Path, tmp_path: Path, workers: str
) -> None:
    folder = prepared(tmp_path, embedded)
    with chdir(folder):
        assert main(["score", "run", "--with", "scores.toml", "--set", f"engine.workers={workers}"]) == 0
    assert scores_of(folder / "run" / "scores") == scores_of(scored / "run" / "scores")


@pytest.mark.faults
def test_killed_and_continued_gives_the_same_bytes(embedded: Finished, scored: Path, tmp_path: Path) -> None:
    folder = prepared(tmp_path, embedded)
    score: list[Any] = ["score", "run", "--with", "scores.toml", "--set", "engine.workers=1"]
    for wanted in (1, 3):
        killed(folder, score, lambda n=wanted: len(list((folder / "run" / "work").glob("score/*/marks/0*.json"))) >= n)
    with chdir(folder):
        assert main(score) == 0
    assert scores_of(folder / "run" / "scores") == scores_of(scored / "run" / "scores")
    whole = selected(folder, tmp_path / "whole", "--where", WHERE, "--top", "similarity=0.6")
    select = ["select", "run", "out", "--where", WHERE, "--top", "similarity=0.6"]
    for part in ("work/select/values/marks/*.json", "work/select/chosen/marks/*.json", "shards/*.tar"):
        killed(folder, select, lambda part=part: bool(list((folder / "out").glob(part))))
    with chdir(folder):
        assert main(select) == 0
    found, wanted_files = tree(folder / "out"), tree(whole)
    assert found == wanted_files


@pytest.mark.engine
def test_prism_gives_the_same_bytes(
    embedded: Finished, scored: Path, tmp_path: Path, prism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", prism)
    folder = prepared(tmp_path, embedded)
    engine = ["--set", "engine.runner=prism", "--set", "engine.workers=0"]
    for args in (["score", "run", "--with", "scores.toml"], ["select", "run", "out", "--where", WHERE]):
        done = altalign(folder, *args, *engine)
        assert done.returncode == 0, done.stderr
    assert scores_of(folder / "run" / "scores") == scores_of(scored / "run" / "scores")
    assert tree(folder / "out") == tree(selected(folder, tmp_path / "whole", "--where", WHERE))


def test_a_balance_keeps_what_a_plain_loop_keeps_and_less_of_a_lower_limit(scored: Path, tmp_path: Path) -> None:
    lines = ["red", "blue", "house", "the old"]
    (tmp_path / "entries.txt").write_text("\n".join(lines), encoding="utf-8")
    table = [row for row in rows(scored / "run").to_pylist() if row["text_characters"] > 10]
    has = {row["key"]: [line for line in lines if f" {line} " in f" {row['caption']} "] for row in table}
    counts = Counter(line for found in has.values() for line in found)
    keys = np.array([row["key"].encode() for row in table], "S32")
    kept = []
    for limit in (3, 12):
        out = tmp_path / str(limit)
        balance = ["--balance", str(tmp_path / "entries.txt"), "--balance-limit", str(limit), "--balance-seed", "5"]
        selected(scored, out, "--where", "text_characters > 10", *balance)
        kept.append(keys_of(out))
        stays = [1 - math.prod(1 - min(1, limit / counts[line]) for line in has[row["key"]]) for row in table]
        drawn = concepts.coins(keys, 5) < stays
        assert kept[-1] == {row["key"] for row, is_drawn in zip(table, drawn, strict=True) if is_drawn}
    assert set() < kept[0] < kept[1]


def test_a_balanced_run_has_the_captions_of_each_concept_before_and_after(scored: Path, tmp_path: Path) -> None:
    lines = ["red", "blue", "house", "the old", "nowhere"]
    (tmp_path / "entries.txt").write_text("\n".join(lines), encoding="utf-8")
    balance = ["--balance", str(tmp_path / "entries.txt"), "--balance-limit", "6"]
    out = selected(scored, tmp_path / "out", "--where", "text_characters > 10", *balance)
    before = [row["caption"] for row in rows(scored / "run").to_pylist() if row["text_characters"] > 10]
    after = [row["caption"] for row in rows(out).to_pylist()]

    def number(captions: list[str], line: str) -> int:
        return sum(f" {line} " in f" {caption} " for caption in captions)

    wanted = [(line, number(before, line), number(after, line)) for line in lines]
    found: Any = pq.read_table(out / "audit" / "balanced.parquet").to_pylist()
    assert [tuple(row.values()) for row in found] == sorted((row for row in wanted if row[1]), key=lambda row: -row[1])
    assert all(row["after"] < row["before"] for row in found if row["before"] > 12)
    assert json.loads((out / "audit" / "report.json").read_bytes())["balanced"] == found
    assert main(["audit", str(out)]) == 0


def test_what_is_no_number_has_no_value_and_is_counted(
    embedded: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepared(tmp_path, embedded)
    (folder / "odd.py").write_text(
        "import pyarrow as pa\n"
        "def odd(caption):\n"
        "    said = [len(text) for text in caption.to_pylist()]\n"
        "    return pa.array([[float('nan'), float('inf'), 1.5, -2.0][n % 4] for n in said], pa.float64())\n",
        encoding="utf-8",
    )
    own = '[[score]]\nname = "odd"\nkind = "own"\nfunction = "odd:odd"\n'
    (folder / "odd.toml").write_text(own, encoding="utf-8")
    with chdir(folder):
        assert main(["score", "run", "--with", "odd.toml"]) == 0
    table = rows(folder / "run").to_pylist()
    missing = sum(len(row["caption"]) % 4 < 2 for row in table)
    assert f"without a value: odd {missing}" in " ".join(capsys.readouterr().out.split())
    assert sum(row["odd"] is None for row in table) == missing > 0
    assert {row["odd"] for row in table} == {None, 1.5, -2.0}
    said = fails(folder, capsys, "select", "run", "out", "--where", "odd > 0")
    assert (
        said == f"run: odd has no value in {missing} samples; say what becomes of those: --nulls drop, or --nulls keep"
    )


def test_a_bit_that_flips_in_a_score_is_found_by_all_that_read_it_and_measured_again(
    embedded: Finished, scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tmp_path, embedded)
    shutil.copytree(scored / "run" / "scores", tmp_path / "run" / "scores")
    before = scores_of(tmp_path / "run" / "scores")
    (path,) = (tmp_path / "run" / "scores" / "text").glob("00000.parquet")
    for place in (4, path.stat().st_size // 2, path.stat().st_size - 5):
        data = bytearray(path.read_bytes())
        data[place] ^= 16
        path.write_bytes(data)
        with chdir(tmp_path):
            for args in (["audit", "run"], ["audit", "run", "--digest"], ["select", "run", "out", "--top", TOP]):
                capsys.readouterr()
                assert main(args) == 1, args
                said = capsys.readouterr()
                assert "scores/text/00000.parquet" in said.out + said.err
            shutil.rmtree("out")
            assert main(["score", "run", "--with", "scores.toml"]) == 0
            assert main(["audit", "run", "--digest"]) == 0
        assert scores_of(tmp_path / "run" / "scores") == before
    manifest = path.with_name("manifest.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows"', b'"rowz"'))
    with chdir(tmp_path):
        assert main(["audit", "run", "--digest"]) == 1
    assert "scores/text/manifest.json: not as it was written" in capsys.readouterr().out
