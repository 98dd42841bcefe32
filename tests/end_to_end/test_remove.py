"""`altalign remove`: what is listed goes out of every file of a run, and nothing else; killed, it is done or not."""

import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data import shards
from altalign.data.reasons import KEPT
from altalign.data.stages import REPORT
from altalign.pipelines.images import embedders
from altalign.pipelines.near import shard_images
from tests.support.curations import counted, summary, tree, write_input
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_input(folder, rows=400)
    with chdir(folder):
        assert main(["curate", "config.toml"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished run of its own."""
    shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run")


def lists(run: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Options that name two pairs, an image and a URL, and the rows of the shards that these are."""
    rows = rows_of(run)
    of_image = Counter(row["image_id"] for row in rows).most_common(1)[0][0]
    url = next(row["image_url"] for row in rows if row["image_url"] and row["image_id"] != of_image)
    pairs = [row for row in rows if row["image_id"] != of_image and row["image_url"] != url][:2]
    (run.parent / "keys").write_text("".join(f"{row['key']}\n" for row in pairs) + "0" * 32, encoding="utf-8")
    (run.parent / "images").write_text(of_image, encoding="utf-8")
    (run.parent / "urls").write_text(url, encoding="utf-8")
    gone = [row for row in rows if row in pairs or row["image_id"] == of_image or row["image_url"] == url]
    return ["--keys", "keys", "--image-ids", "images", "--urls", "urls"], gone


def samples(run: Path) -> dict[str, tuple[bytes, str]]:
    """Image and caption of every sample, by key, from the tars alone."""
    found = {}
    for path in sorted((run / "shards").glob("*.tar")):
        with path.open("rb") as tar:
            found |= {sample.key: (sample.image, sample.caption) for sample in shards.samples(tar)}
    return found


@pytest.mark.everyday
def test_what_is_listed_goes_and_nothing_else(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, gone = lists(run)
    before, tree_before, counts_before = samples(run), tree(run), counted(run)
    side_cars = {path.stem: pq.read_table(path).to_pylist() for path in sorted((run / "shards").glob("*.parquet"))}
    assert main(["remove", "run", *options, "--by", "the author", "--because", "asked by letter"]) == 0
    said = capsys.readouterr().out
    assert f"not there, of --keys: 1 ({'0' * 32})" in said
    keys = {row["key"] for row in gone}
    assert samples(run) == {key: of for key, of in before.items() if key not in keys}
    # shards without any of these are not touched
    untouched = {name for name, rows in side_cars.items() if not keys & {row["key"] for row in rows}}
    after = tree(run)
    assert untouched
    for name in untouched:
        assert after[f"shards/{name}.tar"] == tree_before[f"shards/{name}.tar"]
    # counts: what was kept is kept or removed, all else stays as it was
    counts = counted(run)
    assert {cell: rows for cell, rows in counts.items() if cell[0] != "select"} == counts_before
    removed = Counter(row["source"] for row in gone)
    for source, rows in removed.items():
        assert counts["select", source, "removed"] == rows
        assert counts["select", source, KEPT] == counts_before["decontaminate", source, KEPT] - rows
    left = rows_of(run)
    assert summary(run)["pairs"] == len(left)
    assert summary(run)["images"] == len({row["image_id"] for row in left})
    assert not (run / "work").exists()
    assert main(["audit", "run", "--full"]) == 0
    assert main(["audit", "run", "--digest"]) == 0
    capsys.readouterr()
    assert main(["explain", "run", "--key", gone[0]["key"]]) == 0
    assert "asked by letter" in capsys.readouterr().out


def test_the_funnel_says_what_is_in_the_shards(run: Path) -> None:
    options, _ = lists(run)
    assert main(["remove", "run", *options]) == 0
    rows = pq.read_table(run / "audit" / "funnel.parquet").to_pylist()
    said = {row["source"]: (row["images"], row["bytes"]) for row in rows if row["step"] == "shards"}
    images, sizes = Counter[str | None](), Counter[str | None]()
    there = rows_of(run)
    for source in {row["source"] for row in there}:
        images[source] = len({row["image_id"] for row in there if row["source"] == source})
    for path in sorted((run / "shards").glob("*.parquet")):
        of_shard = pq.read_table(path).to_pylist()
        ends = [row["tar_offset"] for row in of_shard[1:]] + [path.with_suffix(".tar").stat().st_size - 1024 + 512]
        for row, end in zip(of_shard, ends, strict=True):
            sizes[row["source"]] += end - row["tar_offset"]
        sizes[None] += path.with_suffix(".tar").stat().st_size
    images[None] = len({row["image_id"] for row in there})
    assert said == {source: (images[source], sizes[source]) for source in said}


def test_removed_parquet_has_hashes_and_no_text_or_url(run: Path) -> None:
    options, gone = lists(run)
    manifest = hashlib.sha256((run / "manifest.json").read_bytes()).hexdigest()
    side_cars = {path.stem: pq.read_table(path).to_pylist() for path in (run / "shards").glob("*.parquet")}
    assert main(["remove", "run", *options, "--by", "somebody"]) == 0
    data = (run / "removed.parquet").read_bytes()
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    for row in rows:
        assert row["manifest_sha256"] == manifest
        assert row["by"] == "somebody"
        if row["shard"]:
            assert side_cars[row["shard"]][row["row"]]["key"] == row["hash"]
    pairs = [row for row in rows if row["kind"] == "pair"]
    assert {row["hash"] for row in pairs if row["stage"] == "select"} == {row["key"] for row in gone}
    assert {row["kind"] for row in rows} == {"pair", "key", "image_id", "url"}
    text = " ".join(str(value) for row in rows for value in row.values())
    assert not any(row["caption"] in text or str(row["image_url"]) in text for row in gone)


def test_all_of_a_run_may_go(run: Path) -> None:
    rows = rows_of(run)
    Path("keys").write_text("\n".join(row["key"] for row in rows), encoding="utf-8")
    assert main(["remove", "run", "--keys", "keys"]) == 0
    assert rows_of(run) == []
    assert list((run / "shards").iterdir()) == []
    assert main(["audit", "run"]) == 0


def test_near_copies_go_where_that_is_asked_for(run: Path) -> None:
    rows = rows_of(run)
    stems = shard_images.stems_of("run")
    images = {image.image_id: image for stem in stems for image in shard_images.rows_of("run", stem)[1]}
    made = shard_images.vectors_by(embedders.load("dct"), list(images.values()))([*images.values()])
    vectors = dict(zip(images, made.astype(float), strict=True))
    structured = [name for name, vector in vectors.items() if vector.any()]

    def cosine(one: str, other: str) -> float:
        return float(vectors[one] @ vectors[other] / np.linalg.norm(vectors[one]) / np.linalg.norm(vectors[other]))

    above, one = max((cosine(a, b), a) for a in structured for b in structured if a != b)
    near = {other for other in structured if cosine(one, other) > above - 1e-4}
    assert len(near) > 1
    Path("images").write_text(one, encoding="utf-8")
    assert main(["remove", "run", "--image-ids", "images", "--near", f"{above - 1e-4:.8f}"]) == 0
    assert {row["image_id"] for row in rows_of(run)} == {row["image_id"] for row in rows} - near


def test_dry_run_lists_and_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, gone = lists(run)
    before = {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["remove", "run", *options, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{len(gone)} pairs would go, " in said
    assert " that no other pair has, and " in said
    assert "would be written anew" in said
    assert {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_is_not_there_is_named_and_the_run_stays(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(run)
    Path("keys").write_text("f" * 32, encoding="utf-8")
    missing = f"not there, of --keys: 1 ({'f' * 32})"
    for more, says in (["--dry-run"], "would keep it out of what is added"), ([], "keeps it out of what is added"):
        assert main(["remove", "run", "--keys", "keys", *more]) == 1
        said = ["", f"run: nothing of it is there; removed.parquet {says}"]
        assert capsys.readouterr().out.splitlines()[:2] == [missing, *said[1:]]
    after = tree(run)
    stands = {"removed.parquet", "files.jsonl", "manifest.json", "README.md", "croissant.json", *REPORT}
    assert {name for name in after if after[name] != before.get(name)} <= stands
    assert after.keys() - before.keys() == {"removed.parquet"}
    assert (run / "work").exists()
    assert main(["audit", "run"]) == 0
    assert main(["audit", "run", "--digest"]) == 0
    assert main(["remove", "run", "--keys", "keys"]) == 0  # it stands
    assert "was asked for before" in capsys.readouterr().out
    assert main(["add", "run", "--test-set", "more=tests"]) == 2
    assert "what removed.parquet keeps out would come back; do this to a run" in capsys.readouterr().err


def test_stages_are_not_run_anew_over_a_removal(made: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in made.iterdir():
        if path.name != "run":
            (run.parent / path.name).symlink_to(path)
    options, _ = lists(run)
    assert main(["remove", "run", *options]) == 0
    before = tree(run)
    capsys.readouterr()
    for how in (
        ["--restart"],
        ["--rerun", "write"],
        ["--rerun", "extract"],
        ["--set=text.words_at_least=4", "--rerun"],
    ):
        assert main(["curate", "config.toml", *how]) == 2
        assert capsys.readouterr().err == (
            "altalign: run: pairs were removed from it, and stages that run anew would bring them back; curate into "
            "another folder, and there `altalign remove` with --removed run/removed.parquet\n"
        )
    assert main(["curate", "config.toml"]) == 0
    assert tree(run) == before


def test_what_one_run_has_removed_goes_out_of_another(made: Path, run: Path) -> None:
    options, gone = lists(run)
    assert main(["remove", "run", *options]) == 0
    shutil.copytree(made / "run", "other")
    assert main(["remove", "other", "--removed", "run/removed.parquet"]) == 0
    assert samples(Path("other")) == samples(run)
    assert counted(Path("other")) == counted(run)
    assert not {row["key"] for row in gone} & samples(Path("other")).keys()


def test_an_audit_of_all_files_finds_what_a_hand_puts_back(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, gone = lists(run)
    row = next(row for row in gone if row["image_url"])
    shard = next(path for path in sorted((run / "shards").glob("*.parquet")))
    old = {path: path.read_bytes() for path in (shard, run / "dropped" / "judge" / "000000-00000.parquet")}
    assert main(["remove", "run", *options]) == 0
    assert main(["audit", "run", "--full"]) == 0
    for path, data in old.items():
        path.write_bytes(data)
    line = json.dumps({"image_id": row["image_id"], "url": row["image_url"]})
    (run / "log" / "fetch").mkdir(exist_ok=True)
    (run / "log" / "fetch" / "put-back.jsonl").write_text(line + "\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["audit", "run", "--full", "--json"]) == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}["removed"]
    assert not found["passed"]
    assert f"shards/{shard.name}: " in found["detail"]
    assert "log/fetch/put-back.jsonl: 1 of its rows" in found["detail"]


def test_a_half_file_of_a_killed_command_goes_also_where_nothing_else_does(run: Path) -> None:
    (run / "audit" / "checks.json.partial-d3ed80fe").write_bytes(b"{")
    (run.parent / "keys").write_text("0" * 32, encoding="utf-8")
    assert main(["remove", "run", "--keys", "keys"]) == 1
    assert not list(run.rglob("*partial-*"))
