"""`altalign add` and `merge` of one run: generations, tables that stay, what follows, and what is refused."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.pipelines.change import add as adding
from tests.end_to_end.scored import scores_of
from tests.support import archives
from tests.support.curations import CONFIG, counted, flip, tree, write_input
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs

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
    return {row["key"]: {**row, "tar_offset": None, "image": None} for row in rows}


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
    assert "shards/g0002-" in capsys.readouterr().out
    assert main(["status", "--lineage", "run"]) == 0
    said = capsys.readouterr().out
    assert "add" in said
    assert "input/part-4.parquet" in said


def test_work_of_another_layout_is_not_taken_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = storage.read_sealed("run/run.json")
    facts["stages"]["extract"]["reads"]["work_version"] = 0
    storage.write_sealed("run/run.json", facts)
    linked = list[str]()
    monkeypatch.setattr(adding, "_take_over", lambda *_: linked.append("extract"))
    assert main(ADD) == 0
    assert linked == []
    assert main(["audit", "run"]) == 0


def test_scores_follow_into_runs_of_one_generation(run: Path) -> None:
    Path("scores.toml").write_text('[[score]]\nname = "text"\nkind = "text"\n', encoding="utf-8")
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    assert main(ADD) == 0
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    rows = by_key("run")
    assert main(["select", "run", "chosen", "--where", "width > 0"]) == 0  # of two generations
    assert main(["merge", "run", "--to", "whole"]) == 0
    for made in ("whole", "chosen"):
        assert by_key(made) == rows
        assert [row["key"] for row in rows_of(Path(made))] == list(rows)
        followed = scores_of(Path(made, "scores"))
        Path(made, "scores").rename(f"followed-{made}")
        assert main(["score", made, "--with", "scores.toml"]) == 0
        assert followed == scores_of(Path(made, "scores"))
        assert main(["audit", made]) == 0


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
    assert main(["merge", "run", "--to", "no"]) == 2
    assert "rules_version" in capsys.readouterr().err


def test_a_damaged_file_of_a_run_that_has_grown_comes_with_another_write(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ADD) == 0
    rows = by_key("run")
    damaged = ["shards/00000.tar", "shards/g0002-00000.parquet", "dropped/judge/000000-00000.parquet"]
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
    assert by_key("run") == rows


# Tables that stay -----------------------------------------------------------------------------------------------------


def tables_of(run: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(run, "tables").glob("*.npy")}


def test_frozen_tables_stay_until_an_exact_addition_counts_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tables_of("run")
    assert main([*ADD, "--mode", "frozen"]) == 0
    assert "tables: the run's own, from before what was added ([text] tables)" in capsys.readouterr().out
    assert tables_of("run") == before
    assert main(["audit", "run"]) == 0
    assert main(["curate", "run/config.toml", "--rerun", "tables"]) == 0  # the run's own: they stay
    assert tables_of("run") == before
    shutil.move(run, "elsewhere")
    more = ["add", "elsewhere", "--input", "input/part-5.parquet", "--like", "pictures"]
    shutil.copytree("elsewhere", "another")
    assert main([*more, "--mode", "frozen"]) == 0
    assert tables_of("elsewhere") == before
    assert main(["add", "another", *more[2:]]) == 0
    assert tables_of("another") != before


def test_tables_of_another_run_judge_a_pool_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {"[text]": '[text]\ntables = "run/tables"'}
    assert main(["curate", config("second", ["input/part-4.parquet"], named)]) == 0
    assert tables_of("second") == tables_of("run")
    capsys.readouterr()
    for tables, more, said in (
        ("nowhere", {}, "nowhere/vocabulary.json is not there"),
        (
            "run/tables",
            {"per_text_at_most = 3": "per_text_at_most = 4"},
            "over_shared_texts.json has threshold = 3, not 4",
        ),
    ):
        assert (
            main(
                [
                    "curate",
                    config("third", ["input/part-4.parquet"], {"[text]": f'[text]\ntables = "{tables}"', **more}),
                ]
            )
            == 2
        )
        assert said in capsys.readouterr().err


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
    assert counted(Path("run")) == counted(Path("fresh"))


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
