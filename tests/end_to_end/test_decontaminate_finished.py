"""`altalign add --test-set` on a finished run: a test set more; what cannot be done leaves it whole, and what is lost
of it is made anew or named.
"""

import shutil
from pathlib import Path

import pytest

from altalign.cli import main
from tests.end_to_end.decontaminating import (
    FOUND,
    TESTS,
    curate,
    curated,
    dropped,
    failure,
    fetched,
    folder,
    judged,
    names,
)
from tests.support.curations import somebodys_prism, tree
from tests.support.pictures import encoded

__all__ = ["curated", "fetched", "folder", "judged"]  # fixtures

pytestmark = pytest.mark.runs


def test_a_test_set_that_is_added_ends_as_one_that_was_there(
    curated: Path, judged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tree(curated / "run")
    curate("--set", "decontaminate.test_sets=[]")
    fetched = {path: path.stat().st_mtime_ns for path in (judged / "run" / "work" / "fetch" / "units").iterdir()}
    assert main(["add", "run", "--test-set", "mine=tests"]) == 0
    assert {
        path: path.stat().st_mtime_ns for path in (judged / "run" / "work" / "fetch" / "units").iterdir()
    } == fetched
    later = tree(judged / "run")
    # a default said aloud: image_column
    assert {name for name in whole if whole[name] != later.get(name)} <= {"config.toml", "manifest.json"}
    assert whole.keys() == later.keys()
    capsys.readouterr()
    assert main(["add", "run", "--test-set", "mine=tests"]) == 0  # nothing to do
    assert tree(judged / "run") == later
    assert main(["explain", "run", "--url", "https://img.example/jpeg 50-1"]) == 0
    said = capsys.readouterr().out
    assert "with more/1.png of test set mine, [decontaminate] similarity_above = 0.975" in said


@pytest.mark.engine
def test_flags_of_beam_name_the_server_where_a_test_set_is_added(
    half: Path,
    curated: Path,
    folder: Path,
    tmp_path: Path,
    prism: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(half, folder / "run")
    before, log = tree(folder / "run"), tmp_path / "prism.log"
    add = ["add", "run", "--test-set", "mine=tests", "--set", 'engine.runner="prism"']
    with somebodys_prism(prism, log, monkeypatch) as endpoint:
        assert "-- --job_endpoints: Beam has no such flag" in failure(capsys, 2, *add, "--", "--job_endpoints=x")
        assert tree(folder / "run") == before
        assert main([*add, "--", f"--job_endpoint={endpoint}"]) == 0
    assert names(dropped(folder / "run")) == names(dropped(curated / "run"))


def test_test_images_that_changed_are_refused_and_read_anew(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fetched / "own").mkdir()
    (fetched / "own" / "0.png").write_bytes(encoded(TESTS[0], "PNG"))
    chosen = ("--set", 'decontaminate.test_sets=["own"]')
    curate(*chosen)
    assert {name[-1] for name in names(dropped(fetched / "run"))} == {"0"}
    (fetched / "own" / "0.png").write_bytes(encoded(TESTS[1], "PNG"))
    assert "its stage decontaminate was made with" in failure(capsys, 2, "curate", "config.toml", *chosen)
    curate(*chosen, "--rerun")
    assert {name[-1] for name in names(dropped(fetched / "run"))} == {"1"}


def test_a_test_set_is_never_lost_in_silence(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curate("--set", 'decontaminate.test_sets=["tests/*.png"]')
    assert main(["add", "run", "--test-set", "more=tests/more"]) == 0
    assert "the run has a test set of that name (tests/more); give another name" in failure(
        capsys, 2, "add", "run", "--test-set", "more=tests"
    )
    said = failure(capsys, 2, "curate", "config.toml", "--set", 'decontaminate.test_sets=["tests/*.png"]')
    assert "these settings do not name the test set more; `altalign curate run/config.toml --rerun` keeps" in said
    capsys.readouterr()
    curate("--set", 'decontaminate.test_sets=["tests/*.png"]', "--rerun", "decontaminate")


def test_a_finished_run_stays_whole_when_a_test_image_cannot_be_read(
    fetched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curate("--set", "decontaminate.test_sets=[]")
    before = tree(fetched / "run")
    (fetched / "bad").mkdir()
    (fetched / "bad" / "one.jpg").write_bytes(b"\xff\xd8\xff\xe0 and nothing more")
    assert "one.jpg: an image of test set bad cannot be decoded" in failure(
        capsys, 1, "add", "run", "--test-set", "bad=bad"
    )
    assert tree(fetched / "run") == before


@pytest.fixture(scope="module")
def half(curated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run finished with half of the test set."""
    folder = tmp_path_factory.mktemp("half")
    for name in ("pool.parquet", "tests", "config.toml"):
        (folder / name).symlink_to(curated / name)
    shutil.copytree(curated / "run", folder / "run")  # with the times of files
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        curate("--rerun", "decontaminate", "--set", 'decontaminate.test_sets=["tests/more"]')
    return folder / "run"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("--test-set", "own=run/shards/00000.tar"),
            "run/shards/00000.tar: overlaps the run's own folder run",
        ),
        (("--test-set", "all=."), ".: overlaps the run's own folder run"),
        (
            ("--test-set", "mine=tests", "--set", "decontaminate.calibration=run/audit/near_duplicates"),
            "near_duplicates': overlaps the run's own folder run",
        ),
        (
            ("--test-set", "mine=tests", "--set", "decontaminate.embedder=phash"),
            "its stage fetch was made with decontaminate.embedder = 'dct', now 'phash'",
        ),
    ],
)
def test_a_finished_run_stays_whole_when_what_is_asked_for_would_take_it_away(
    half: Path, folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    shutil.copytree(half, folder / "run")
    before = tree(folder / "run")
    assert said in failure(capsys, 2, "add", "run", *args)
    assert tree(folder / "run") == before


def test_what_is_lost_of_a_run_is_made_anew_or_named(
    curated: Path, half: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(half, folder / "run")
    (folder / "run" / "work" / "test_images" / "00000.parquet").unlink()
    assert main(["add", "run", "--test-set", "mine=tests"]) == 0
    assert names(dropped(folder / "run")) == FOUND
    (folder / "run" / "audit" / "near_duplicates" / "found.json").unlink()
    said = failure(capsys, 1, "add", "run", "--test-set", "mine=tests")
    assert "found.json: damaged: it is not there; `altalign curate` with --rerun decontaminate makes it anew" in said
    (folder / "run" / "work" / "test_images" / "marks" / "00000.json").write_text("{", encoding="utf-8")
    assert "00000.json: damaged: not as it was written" in (
        said := failure(capsys, 1, "add", "run", "--test-set", "flat=tests/flat.png")
    )
    assert "--rerun fetch makes it anew" in said
    learned = f"decontaminate.calibration={curated}/run/audit/near_duplicates"  # or the map would be learned again
    curate("--rerun", "fetch", "--set", 'decontaminate.test_sets=["tests"]', "--set", learned)
    assert names(dropped(folder / "run")) == FOUND
