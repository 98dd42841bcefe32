"""`altalign curate --rerun` of a run that has more inputs or test sets than the settings: nothing goes silently."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.support.curations import fails, summary, tree
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs

SMALLER = ["--set", "shards.samples_per_shard=7"]


@pytest.fixture
def grown(folder: Path) -> int:
    """A run that was given a table later, in a folder with a blank; returns its pairs."""
    (folder / "more").mkdir()
    (folder / "input" / "part-1.parquet").rename(folder / "more" / "later.parquet")
    assert main(["curate", "config.toml", "--set", "run.folder=my run"]) == 0
    before = summary(folder / "my run")["pairs"]
    assert main(["add", "my run", "--input", "more/later.parquet", "--like", "pictures"]) == 0
    pairs = summary(folder / "my run")["pairs"]
    assert pairs > before
    return pairs


@pytest.mark.parametrize("rerun", [[], ["--rerun"], ["--rerun", "extract"]], ids=" ".join)
@pytest.mark.usefixtures("grown")
def test_what_was_added_does_not_go(rerun: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: of for name, of in tree(folder / "my run").items() if not name.startswith("work/")}
    for is_cleaned in (False, True):
        assert not is_cleaned or main(["clean", "my run"]) == 0
        said = fails(capsys, 2, "--set", "run.folder=my run", *SMALLER, *rerun)
        assert "these settings do not name the input more/later.parquet; " in said
        assert "'my run/config.toml' --rerun" in said
        assert {name: of for name, of in tree(folder / "my run").items() if not name.startswith("work/")} == before


def test_the_settings_of_a_run_run_as_they_are(grown: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "my run/config.toml"]) == 0  # nothing to do
    Path("photos").mkdir()
    Path("photos/a.png").touch()
    capsys.readouterr()
    assert main(["add", "my run", "--input", "photos", "--like", "pictures"]) == 2
    said = 'altalign: --input: photos is a folder, and kind = "table"; name its files, such as photos/*; '
    assert said in capsys.readouterr().err
    assert main(["curate", "my run/config.toml", "--rerun", *SMALLER]) == 0
    assert summary(folder / "my run")["pairs"] == grown
    assert main(["curate", "config.toml", "--set", "run.folder=my run", "--restart"]) == 0
    assert summary(folder / "my run")["pairs"] < grown
    assert main(["select", "my run", "selected", "--where", "words > 3"]) == 0
    capsys.readouterr()
    assert main(["curate", "selected/config.toml"]) == 2
    assert "made of another run" in capsys.readouterr().err


def test_an_input_that_is_left_out_goes_where_its_stage_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml"]) == 0
    pairs = summary(folder / "run")["pairs"]
    shutil.move("input/part-1.parquet", "elsewhere.parquet")
    said = fails(capsys, 2, "--rerun")  # the run's own settings would not find it either
    assert "these settings do not name the input input/part-1.parquet; put back what is gone, " in said
    assert main(["curate", "config.toml", "--rerun", "extract"]) == 0
    assert summary(folder / "run")["pairs"] < pairs


def test_the_only_input_file_is_named_without_a_share(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[run]\nfolder = "one"\n\n[[input]]\nkind = "table"\npaths = ["{}.csv"]\n'
    for name in "ab":
        Path(f"{name}.csv").write_text("url,caption\nhttp://a/1.png,a red dog on grass\n", encoding="utf-8")
        Path("config.toml").write_text(text.format(name), encoding="utf-8")
        assert name == "b" or main(["curate", "config.toml", "--until", "judge"]) == 0
    assert "do not name the input a.csv; " in fails(capsys, 2, "--until", "judge")


def test_a_test_set_that_came_later_does_not_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--set", "decontaminate.test_sets=[]"]) == 0
    assert main(["add", "run", "--test-set", "late=tests"]) == 0
    before = tree(folder / "run")
    said = fails(capsys, 2, "--set", "decontaminate.test_sets=[]", "--rerun")
    assert "the test set late" in said
    assert tree(folder / "run") == before
    assert main(["curate", "run/config.toml", "--rerun", *SMALLER]) == 0


def files(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def test_an_addition_of_nothing_leaves_the_run_as_it_was(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml"]) == 0
    (folder / "more").mkdir()
    pq.write_table(pq.read_table("input/part-0.parquet").slice(0, 0), "more/none.parquet")
    Path("more/none.csv").write_text("url,caption\n")
    before = files(folder / "run")
    for name, like in (("none.parquet", "pictures"), ("none.csv", "words")):
        capsys.readouterr()
        assert main(["add", "run", "--input", f"more/{name}", "--like", like]) == 2, capsys.readouterr()
        assert files(folder / "run") == before
        assert not (folder / "run" / ".adding").exists()


def test_status_says_what_a_kill_has_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--set", "run.folder=my run"]) == 0
    (folder / "my run" / ".adding").mkdir()
    capsys.readouterr()
    assert main(["status", "my run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "run the same `altalign add` again" in said


def test_a_selected_run_says_its_condition(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml"]) == 0
    (some, *_) = {row["source"] for row in rows_of(folder / "run")}
    assert main(["select", "run", "selected", "--where", f"not source = '{some}'"]) in (0, 1)
    said = f"condition NOT (source = '{some}') does not hold"
    assert said in Path("selected/README.md").read_text()
    assert said in json.dumps(json.loads(Path("selected/audit/report.json").read_text())["reasons"])
    row = next(row for row in rows_of(folder / "run") if row["source"] == some)
    capsys.readouterr()
    assert main(["explain", "selected", "--key", row["key"]]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
