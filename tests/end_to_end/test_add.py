"""`altalign add` and `compact`: what one run over all the input leaves, after any sequence with removals between."""

import hashlib
import io
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.dedup.merge import merge_ngrams
from altalign.pipelines.images import measuring
from altalign.pipelines.opening import reopen
from altalign.pipelines.run.tables.counted import KINDS
from altalign.pipelines.stages import reuse, tables, write
from tests.altalign.audit.runs import rows_of
from tests.end_to_end.runs import CONFIG, EXEMPT, altalign, flip, summary, tree, write_input
from tests.pipelines.read.pages import archives

pytestmark = pytest.mark.runs

SEQUENCES = int(os.environ.get("ALTALIGN_SEQUENCES", "1"))  # test_sequences.py has others
PARTS = 6
INPUT = """
[[input]]
name = "{name}"
kind = "table"
paths = ["{path}"]
{more}
"""
PICTURES = 'image_column = "image"\npage_url_column = "page"'


def write_parts(folder: Path, *, seed: int, rows: int = 600) -> list[str]:
    """Six tables of images and a table of texts; returns their paths from `folder`."""
    write_input(folder, rows=rows, seed=seed)
    table = pa.concat_tables([pq.read_table(folder / "input" / f"part-{number}.parquet") for number in range(2)])
    for number in range(PARTS):
        part = table.slice(number * rows // PARTS, rows // PARTS)
        pq.write_table(part, folder / "input" / f"part-{number}.parquet", row_group_size=20)
    return [f"input/part-{number}.parquet" for number in range(PARTS)]


def config(run: str, inputs: list[str], changes: dict[str, str] | None = None) -> str:
    """A config of these tables of images, in this order, the table of texts after the first of them; its path."""
    rest = CONFIG[CONFIG.index("[text]") :]
    for old, new in (changes or {}).items():
        rest = rest.replace(old, new)
    tables = [INPUT.format(name="pictures", path=path, more=PICTURES) for path in inputs]
    words = INPUT.format(name="words", path="text/*.csv", more="")
    text = "\n".join([f'[run]\nfolder = "{run}"', tables[0], words, *tables[1:], rest])
    Path(f"{run}.toml").write_text(text, encoding="utf-8")
    return f"{run}.toml"


def by_key(run: str) -> dict[str, dict[str, Any]]:
    """The samples of a run in the order of (image_id, key), without their places in tars."""
    rows = sorted(rows_of(Path(run)), key=lambda row: (row["image_id"], row["key"]))
    return {row["key"]: {**row, "tar_offset": None} for row in rows}


def counted(run: str) -> Counter[tuple[str, str, str]]:
    rows = pq.read_table(Path(run, "counts.parquet")).to_pylist()
    return Counter({(row["stage"], row["source"], row["reason"]): row["rows"] for row in rows})


def shards(run: str) -> dict[str, str]:
    return {name: digest for name, digest in tree(Path(run)).items() if name.startswith("shards/")}


def drawn(rng: random.Random, run: str) -> list[str]:
    """Options of `altalign remove` that name some pairs, an image or a page of a run."""
    rows = rows_of(Path(run))
    kind = rng.choice(["keys", "image-ids", "urls", "hashes"])
    column = {"keys": "key", "image-ids": "image_id", "urls": "page_url", "hashes": "found_sha256"}[kind]
    values = sorted({row[column] for row in rows if row[column]})
    number = len(values) // 8 if kind == "keys" else 1
    Path("list").write_text("\n".join(rng.sample(values, max(1, number))), encoding="utf-8")
    return [f"--{kind}", "list"]


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_any_sequence_leaves_what_one_run_over_all_the_input_leaves(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    parts = write_parts(Path(), seed=seed)
    rng.shuffle(parts)
    changes = {
        "vocabulary_size = 380": f"vocabulary_size = {rng.randrange(150, 380)}",
        "per_text_at_most = 3": f"per_text_at_most = {rng.randrange(2, 5)}",
        "texts_per_image_at_most = 17": f"texts_per_image_at_most = {rng.randrange(17, 30)}",
        "[shards]": f'[dedup]\nwithin_pool = "{rng.choice(["off", "keep_one_image"])}"\n\n[shards]',
    }
    assert main(["curate", config("run", parts[:2], changes)]) == 0
    there, removed = parts[:2], False
    while len(there) < len(parts):
        step = rng.choice(["add", "add", "remove", "compact"])
        if step == "add":
            new = sorted(parts[len(there) : len(there) + rng.randrange(1, 3)])  # as paths of an input are
            named = [word for path in new for word in ("--input", path)]
            assert main(["add", "run", *named, "--like", "pictures"]) == 0
            there = there + new
        elif step == "remove":
            assert main(["remove", "run", *drawn(rng, "run")]) == 0
            removed = True
        else:
            assert main(["merge", "run"]) == 0
        assert main(["audit", "run"]) == 0, step
    assert main(["curate", config("fresh", there, changes)]) == 0
    if removed:
        assert main(["remove", "fresh", "--removed", "run/removed.parquet"]) == 0
    assert by_key("run") == by_key("fresh")
    assert counted("run") == counted("fresh")
    assert summary(Path("run"))["images"] == summary(Path("fresh"))["images"]
    # packed anew, both have the same bytes
    assert main(["merge", "run"]) == 0
    assert main(["merge", "fresh"]) == 0
    assert shards("run") == shards("fresh")
    assert main(["audit", "run"]) == 0
    if not removed:  # then all files are the same, and so is the number that stands for them
        assert Path("run", "files.jsonl").read_bytes() == Path("fresh", "files.jsonl").read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six tables, and a run of the first four."""
    folder = tmp_path_factory.mktemp("made")
    parts = write_parts(folder, seed=1)
    with chdir(folder):
        assert main(["curate", config("run", parts[:4])]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, of its own."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here" / "run"
    shutil.rmtree(tmp_path / "here")


ADD = ["add", "run", "--input", "input/part-4.parquet", "--like", "pictures"]


def test_the_checks_at_the_end_read_what_has_come_and_an_audit_reads_all(run: Path) -> None:
    def tars() -> int:
        checks = json.loads((run / "audit" / "checks.json").read_text())["checks"]
        return next(check["checked"] for check in checks if check["name"] == "tars")

    assert main(ADD) == 0
    names = [entry["name"] for entry in json.loads((run / "manifest.json").read_text())["shards"]]
    new = [name for name in names if name.startswith("g0002-")]
    assert 0 < len(new) < len(names)
    assert tars() == len(new)
    assert main(["audit", "run"]) == 0
    assert tars() == len(names)


def test_partitions_that_were_merged_grow_and_only_a_damaged_one_is_merged_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = list[int]()

    def noted(ngrams: np.ndarray, hot: np.ndarray) -> Any:
        merged.append(len(ngrams))
        return merge_ngrams(ngrams, hot)

    damaged = sorted((run / "work" / "tables" / "merged").glob("*.ngrams"))[3]
    damaged.write_bytes(damaged.read_bytes()[:-8])
    monkeypatch.setattr(tables, "merge_ngrams", noted)
    assert main(ADD) == 0
    assert len(merged) == 1
    monkeypatch.setattr(tables, "merge_ngrams", merge_ngrams)
    assert main(["curate", config("fresh", [f"input/part-{number}.parquet" for number in range(5)])]) == 0
    names = [f"{table}.{ending}" for table in KINDS.values() for ending in ("npy", "json")]
    for path in (*(f"tables/{name}" for name in names), "audit/histograms.json"):
        assert Path("run", path).read_bytes() == Path("fresh", path).read_bytes()


@pytest.mark.everyday
def test_new_samples_come_as_a_generation_and_shards_that_stay_are_the_same_files(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, rows_before = tree(run), by_key("run")
    inodes = {path.name: path.stat().st_ino for path in (run / "shards").iterdir()}
    assert main(ADD) == 0
    capsys.readouterr()
    after, rows = tree(run), by_key("run")
    new = {name for name in after if name.startswith("shards/g0002-")}
    assert new
    assert rows.keys() - rows_before.keys()
    kept = {name for name, digest in before.items() if name.startswith("shards/") and after.get(name) == digest}
    assert {name: (run / name).stat().st_ino for name in kept} == {name: inodes[Path(name).name] for name in kept}
    # a key that is new is in a shard of the new generation, and explain says so
    key = next(iter(rows.keys() - rows_before.keys()))
    assert main(["explain", "run", "--key", key]) == 0
    assert "generation 2" in capsys.readouterr().out
    assert main(["status", "--lineage", "run"]) == 0
    said = capsys.readouterr().out
    assert "add" in said
    assert "input/part-4.parquet" in said


def test_a_text_that_is_now_on_too_many_images_takes_its_old_pairs_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = write_parts(Path(), seed=3)
    text = {"vocabulary_size = 380\n": "", "per_text_at_most = 3": "per_text_at_most = 2"}
    assert main(["curate", config("run", parts[:1], text)]) == 0
    old = rows_of(Path("run"))
    caption = next(row["caption"] for row in old)
    table = pq.read_table(parts[1]).to_pylist()
    images = {row["url"]: row["image"] for row in pq.read_table(parts[2]).to_pylist() if row["url"] and row["image"]}
    more = [{**table[0], "url": url, "image": image, "caption": caption} for url, image in list(images.items())[:5]]
    pq.write_table(pa.Table.from_pylist(more, pq.read_table(parts[1]).schema), "input/more.parquet")
    assert main(["add", "run", "--input", "input/more.parquet", "--like", "pictures"]) == 0
    assert caption not in {row["caption"] for row in rows_of(Path("run"))}
    gone = pq.read_table(Path("run", "dropped", "judge")).to_pylist()
    keys = {row["key"] for row in old if row["caption"] == caption}
    assert {row["reason"] for row in gone if row["key"] in keys} == {"text_on_too_many_images"}


def test_images_that_were_there_are_not_measured_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[bytes]()
    real = measuring.measure

    def noting(data: bytes, **more: Any) -> measuring.Measured:
        seen.append(data)
        return real(data, **more)

    kept = {row["found_sha256"] for row in rows_of(run)}
    noted = sorted(Path("run", "work", "fetch", "units").glob("*.known"))
    dropped = {row["found_sha256"] for path in noted for row in pq.read_table(path).to_pylist()} - kept
    assert dropped
    shutil.copytree("run", "other")
    assert main(["clean", "other"]) == 0
    monkeypatch.setattr(measuring, "measure", noting)
    assert main(ADD) == 0
    assert not (kept | dropped) & {hashlib.sha256(data).hexdigest() for data in seen}
    # who does not know them measures them
    assert main(["add", "other", *ADD[2:]]) == 0
    again = {hashlib.sha256(data).hexdigest() for data in seen}
    assert kept & again
    assert dropped & again


def test_work_of_another_layout_is_not_taken_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = storage.read_sealed("run/run.json")
    facts["stages"]["extract"]["reads"]["work_version"] = 0
    storage.write_sealed("run/run.json", facts)
    linked = list[str]()
    monkeypatch.setattr(reuse, "take_over", lambda *_: linked.append("extract"))
    assert main(ADD) == 0
    assert linked == []
    assert main(["audit", "run"]) == 0


def test_work_that_is_gone_is_done_anew(run: Path) -> None:
    shutil.copytree("run", "other")
    assert main(ADD) == 0
    assert main(["clean", "other"]) == 0
    assert main(["add", "other", *ADD[2:]]) == 0
    assert {name: of for name, of in tree(Path("other")).items() if name != "manifest.json"} == {
        name: of for name, of in tree(run).items() if name != "manifest.json"
    }


def test_after_an_addition_the_run_can_be_added_to_and_retold(run: Path) -> None:
    assert main(ADD) == 0
    assert main(["add", "run", "--input", "input/part-5.parquet", "--like", "pictures"]) == 0
    assert any(name.startswith("shards/g0003-") for name in tree(run))
    assert main(["audit", "run"]) == 0
    assert main(["status", "run"]) == 0
    # the settings of the run name all input: written anew with them, it is of one generation
    assert main(["curate", "run/config.toml", "--set", 'run.folder="run"', "--rerun", "write"]) == 0
    one = tree(run)
    assert not any(name.startswith("shards/g") for name in one)
    parts = [f"input/part-{number}.parquet" for number in range(PARTS)]
    assert main(["curate", config("fresh", parts)]) == 0
    assert one == tree(Path("fresh"))


def test_scores_follow(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("scores.toml").write_text('[[score]]\nname = "text"\nkind = "text"\n', encoding="utf-8")
    if main(["score", "run", "--with", "scores.toml"]) != 0:
        pytest.fail(capsys.readouterr().err)
    assert main(ADD) == 0
    assert main(["audit", "run"]) == 0
    capsys.readouterr()
    assert main(["merge", "run"]) == 2
    assert "measure them with `altalign score`" in capsys.readouterr().err
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    before = scores_of("run")
    assert main(["merge", "run"]) == 0
    assert scores_of("run") == before
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    assert scores_of("run") == before
    assert main(["audit", "run"]) == 0


def scores_of(run: str) -> dict[str, dict[str, Any]]:
    """The values of a score by key; each shard's file has the keys of its side-car, in their order."""
    found = dict[str, dict[str, Any]]()
    for path in sorted(Path(run, "shards").glob("*.parquet")):
        rows = pq.read_table(Path(run, "scores", "text", path.name)).to_pylist()
        assert [row["key"] for row in rows] == pq.read_table(path)["key"].to_pylist()
        found |= {row["key"]: row for row in rows}
    return found


def test_bad_input_is_one_line_and_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pages.warc.gz").write_bytes(b"no archive")
    before = tree(run)
    shutil.copytree("run", "made-elsewhere")
    bad = {
        ("run", "--input", "input/part-4.parquet"): "say with --like which",
        ("run", "--input", "input/part-4.parquet", "--like", "pages"): "the run has no such input",
        ("run", "--input", "input/none-*.parquet", "--like", "pictures"): "nothing matches",
        ("run", "--input", "pages.warc.gz", "--like", "pictures"): "pages.warc.gz",
        ("nowhere", "--input", "input/part-4.parquet"): "no such run folder",
    }
    for words, said in bad.items():
        assert main(["add", *words]) != 0, words
        err = capsys.readouterr().err
        assert said in err, words
        assert "Traceback" not in err
        assert tree(run) == before, words
    assert main(["select", "run", "few", "--list", one_key(run)]) == 0
    capsys.readouterr()
    assert main(["add", "few", "--input", "input/part-4.parquet", "--like", "pictures"]) == 2
    assert "made of another run" in capsys.readouterr().err
    # all of it is there already: nothing is done, and that is no error
    assert main(["add", "run", "--input", "input/part-3.parquet", "--like", "pictures"]) == 0
    assert "in the run already; it stays as it is" in capsys.readouterr().err
    # a file of the run that has changed since
    rows = pq.read_table("input/part-0.parquet")
    pq.write_table(rows.slice(1), "input/part-0.parquet")
    assert main(ADD) == 2
    assert "part-0.parquet" in capsys.readouterr().err
    assert tree(run) == before


def one_key(run: Path) -> str:
    Path("one-key").write_text(rows_of(run)[0]["key"], encoding="utf-8")
    return "one-key"


def test_a_run_of_other_rules_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("altalign.pipelines.derive.parents.RULES_VERSION", "another")
    assert main(ADD) == 2
    assert "rules_version" in capsys.readouterr().err
    assert main(["merge", "run"]) == 2
    assert "rules_version" in capsys.readouterr().err


def told_of(run: str) -> dict[str, bytes]:
    """The files of a run but those that name its parents by their numbers, which also begin names of dropped rows."""
    named = {"manifest.json", "files.jsonl", "README.md", "run.json", "keys.json"}
    paths = [path for path in Path(run).rglob("*") if path.is_file() and path.name not in named]
    places = {str(path.relative_to(run)): path for path in paths if path.relative_to(run).parts[0] not in EXEMPT}
    return {re.sub(r"select/[0-9a-f]{8}-", "select/", name): path.read_bytes() for name, path in places.items()}


def test_what_is_made_of_generations_has_the_bytes_of_what_is_made_of_one(run: Path) -> None:
    Path("scores.toml").write_text('[[score]]\nname = "text"\nkind = "text"\n', encoding="utf-8")
    assert main(ADD) == 0
    assert main(["add", "run", "--input", "input/part-5.parquet", "--like", "pictures"]) == 0
    rows = rows_of(run)
    assert {row["key"] for row in rows} == by_key("run").keys()
    (Path("gone")).write_text("\n".join(row["key"] for row in rows[::17]), encoding="utf-8")
    assert main(["remove", "run", "--keys", "gone"]) == 0  # so that its shards are no longer full
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    shutil.copytree("run", "one")
    assert main(["merge", "one"]) == 0
    assert shards("one") != shards("run")
    Path("keys").write_text("\n".join(row["key"] for row in rows[::3]), encoding="utf-8")
    Path("entries").write_text("small\nred\nold\n", encoding="utf-8")
    verbs = {
        "few": ["select", "--list", "keys"],
        "long": ["select", "--where", "words >= 4 and text_capitals < 0.9", "--top", "text_characters=0.6"],
        "even": ["select", "--balance", "entries", "--balance-limit", "20"],
        "listed": ["select", "--where", "words >= 6", "--keys-only"],
        "half": ["select", "--share", "0.5/0.5"],
    }
    for name, (verb, *options) in verbs.items():
        for source in ("run", "one"):
            outs = [f"{name}-{source}", *([f"rest-{source}"] if "--share" in options else [])]
            assert main([verb, source, *outs, *options]) == 0, (name, source)
    for name in ("few", "long", "even", "half", "rest"):
        assert told_of(f"{name}-run") == told_of(f"{name}-one"), name
        assert any(path.startswith("shards/") for path in told_of(f"{name}-run"))
    listed, wanted = (pq.read_table(f"listed-{of}/keys.parquet") for of in ("run", "one"))
    assert Counter(listed["key"].to_pylist()) == Counter(wanted["key"].to_pylist())
    there = {row["key"]: path.stem for path in (run / "shards").glob("*.parquet") for row in rows_in(path)}
    assert [there[key] for key in listed["key"].to_pylist()] == listed["shard"].to_pylist()
    assert main(["audit", "few-run"]) == 0


def rows_in(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path, columns=["key"]).to_pylist()


def test_a_run_of_generations_is_merged_as_one_of_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"vocabulary_size = 380\n": "", '[decontaminate]\ntest_sets = ["tests"]\n': ""}
    parts = [f"input/part-{number}.parquet" for number in range(PARTS)]
    assert main(["curate", config("first", parts[:2], changes)]) == 0
    assert main(["add", "first", "--input", parts[2], "--like", "pictures"]) == 0
    text = Path(config("second", parts[3:], changes)).read_text(encoding="utf-8")
    words = text.index('[[input]]\nname = "words"')
    Path("second.toml").write_text(text[:words] + text[text.index("[[input]]", words + 1) :], encoding="utf-8")
    assert main(["curate", "second.toml"]) == 0
    shutil.copytree("first", "one")
    assert main(["merge", "one"]) == 0
    for source in ("first", "one"):
        assert main(["merge", source, "second", "--to", f"of-{source}"]) == 0
    assert shards("of-first") == shards("of-one")
    assert summary(Path("of-first")) == summary(Path("of-one"))
    assert main(["audit", "of-first"]) == 0


def test_damaged_shards_of_generations_are_made_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ADD) == 0
    before = tree(run)
    names = sorted(path.stem for path in (run / "shards").glob("*.tar"))
    old, new = ([name for name in names if name.startswith("g0002-") is of] for of in (False, True))
    damaged = [f"{old[0]}.tar", f"{old[-1]}.parquet", f"{old[1]}.parquet", f"{old[1]}.tar", f"{new[0]}.tar"]
    for name in damaged:
        flip(run / "shards" / name, -1)
    capsys.readouterr()
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    said = capsys.readouterr().out
    assert all(f"shards/{name}: its SHA-256" in said for name in damaged)
    assert tree(run) == before


def test_a_packed_run_is_repaired_to_what_it_was_its_lineage_too(run: Path) -> None:
    assert main(ADD) == 0
    assert main(["merge", "run"]) == 0
    before, manifest = tree(run), (run / "manifest.json").read_bytes()
    flip(run / "shards" / "00000.tar", -1)
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    assert tree(run) == before
    assert (run / "manifest.json").read_bytes() == manifest


class _KilledError(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.mark.parametrize(("module", "name"), [(reopen, "write_settings"), (write, "end")])
def test_a_packed_run_keeps_its_lineage_where_repair_is_killed_without_a_manifest_or_with_the_new_one(
    run: Path, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(ADD) == 0
    assert main(["merge", "run"]) == 0
    before = tree(run)
    flip(run / "dropped" / "judge" / "000000-00000.parquet", -1)
    real = getattr(module, name)

    def last(*args: Any, **more: Any) -> None:
        real(*args, **more)
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(module, name, last)
        with pytest.raises(_KilledError):
            main(["curate", "run/config.toml", "--repair"])
    assert (run / "manifest.json").exists() == (name == "end")
    assert main(["curate", "run/config.toml", "--set", "run.folder=run"]) == 0
    assert tree(run) == before
    assert name == "end" or not (run / "work" / "write" / "lineage.json").exists()


@pytest.mark.parametrize("of", ["several side-cars", "a table"])
def test_what_repair_leaves_of_a_run_of_generations_comes_with_another_write(
    run: Path, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ADD) == 0
    table = "dropped/judge/000000-00000.parquet"
    damaged = ["shards/00000.parquet", "shards/g0002-00000.parquet"] if of == "several side-cars" else [table]
    for name in damaged:
        flip(run / name, -1)
    capsys.readouterr()
    assert main(["curate", "run/config.toml", "--repair"]) == 1
    said = capsys.readouterr().out
    assert all(f"{name}: its SHA-256" in said for name in damaged)
    again = "curate run/config.toml --rerun write"
    assert f"`altalign {again}` makes one generation" in said
    assert main(again.split()) == 0
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    assert main(["merge", "run"]) == 0
    assert "of one generation already" in capsys.readouterr().out


def test_a_glob_of_the_run_may_match_the_new_file_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_parts(Path(), seed=2)
    Path("later").mkdir()
    shutil.move("input/part-5.parquet", "later/part-5.parquet")
    assert main(["curate", config("run", ["input/*.parquet"])]) == 0
    shutil.move("later/part-5.parquet", "input/part-5.parquet")
    assert main(["add", "run", "--input", "input/part-5.parquet", "--like", "pictures"]) == 0
    first = '", "'.join(f"input/part-{number}.parquet" for number in range(5))
    assert main(["curate", config("fresh", [first, "input/part-5.parquet"])]) == 0
    assert by_key("run") == by_key("fresh")
    assert counted("run") == counted("fresh")


def added(folder: Path, *flags: str) -> Path:
    """A run of all tables but one, to which that one was added, by processes of their own."""
    folder.mkdir()
    with chdir(folder):
        *first, later = write_parts(Path(), seed=5, rows=240)
        config("run", first)
    for args in (["curate", "run.toml", *flags], ["add", "run", "--input", later, "--like", "pictures"]):
        done = altalign(folder, *args)
        assert done.returncode == 0, done.stderr
    return folder / "run"


def test_an_addition_by_prism_leaves_the_same_bytes(
    tmp_path: Path, prism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", prism)
    run = added(tmp_path / "prism", "--set", "engine.runner=prism", "--set", "engine.workers=0")
    assert storage.read_json(str(run / "run.json"))["engine"]["runner"] == "prism"
    assert tree(run) == tree(added(tmp_path / "embedded"))


def test_what_is_added_to_an_input_without_a_name_has_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        page = f'<img src="https://h.example/{name}.png" alt="a picture of the {name} lake">'.encode()
        records = [archives.response(f"https://h.example/{name}", page)]
        image = io.BytesIO()
        Image.new("RGB", (300, 250), "blue" if name == "first" else "red").save(image, "PNG")
        records.append(archives.response(f"https://h.example/{name}.png", image.getvalue(), "image/png"))
        archives.write(Path(f"{name}.warc.gz"), records)
    Path("config.toml").write_text('[run]\nfolder = "run"\n[input]\nkind = "warc"\npaths = ["first.warc.gz"]\n')
    assert main(["curate", "config.toml"]) == 0
    assert main(["add", "run", "--input", "second.warc.gz"]) == 0
    assert {row["source"] for row in rows_of(Path("run"))} == {"warc"}
