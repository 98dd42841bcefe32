"""Every byte of a finished run is vouched for: what changes, goes or comes is noticed, named, and made anew."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from altalign.cli import main
from altalign.data.listing import FILE, NOT_LISTED
from altalign.data.stages import REPORT
from tests.support.curations import flip, tree, write_input

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_input(folder, rows=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished run of its own, beside its input."""
    for part in made.iterdir():
        (tmp_path / part.name).symlink_to(part) if part.name != "run" else shutil.copytree(part, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run")


def files(run: Path) -> list[str]:
    """All files of a run but log/, work/ and the report."""
    found = (str(path.relative_to(run)) for path in sorted(run.rglob("*")) if path.is_file())
    return [name for name in found if name not in REPORT and name.split("/")[0] not in ("log", "work")]


def looked(run: Path, capsys: pytest.CaptureFixture[str], *how: str) -> tuple[int, dict[str, str]]:
    """Exit code, and what is wrong with which file."""
    capsys.readouterr()
    code = main(["audit", "run", *(how or ("--digest",)), "--json"])
    said = capsys.readouterr()
    if said.err:  # a file without which nothing can be said of the others
        (line,) = said.err.splitlines()
        return code, {line.removeprefix("altalign: run/").partition(": ")[0]: line}
    return code, json.loads(said.out)["wrong"]


@pytest.mark.everyday
def test_the_list_has_every_file_with_its_size_and_digest_and_its_own_digest_is_the_number_of_the_run(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made / "run"
    listed = [json.loads(line) for line in (run / FILE).read_text(encoding="utf-8").splitlines()]
    assert [line["path"] for line in listed] == [name for name in files(run) if name not in NOT_LISTED]
    for line in listed:
        data = (run / line["path"]).read_bytes()
        assert (line["bytes"], line["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    capsys.readouterr()
    assert main(["audit", str(run), "--digest"]) == 0
    number = capsys.readouterr().out.strip()
    assert number == hashlib.sha256((run / FILE).read_bytes()).hexdigest()
    assert number in (run / "README.md").read_text(encoding="utf-8")
    assert json.loads((run / "manifest.json").read_text(encoding="utf-8"))["files"]["sha256"] == number


@pytest.mark.everyday
def test_a_changed_byte_in_any_file_is_noticed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(files(run)):
        at = (0, len((run / name).read_bytes()) // 2, -1)[number % 3]
        flip(run / name, at)
        code, wrong = looked(run, capsys)
        assert code == 1, name
        assert name in wrong or "manifest.json" in wrong, name
        flip(run / name, at)
    assert looked(run, capsys) == (0, {})


def test_a_missing_and_a_surplus_file_are_noticed_by_sizes_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in files(run):
        if name not in ("run.json", "manifest.json"):  # without these it is no run, or not finished
            (run / name).rename(run / ".elsewhere")
            assert looked(run, capsys, "--quick")[0] == 1, name
            (run / ".elsewhere").rename(run / name)
    for name in ("dropped/judge/999999-00000.parquet", "shards/99999.tar", "notes.txt"):
        (run / name).write_bytes(b"x")
        assert looked(run, capsys, "--quick") == (1, {name: "nothing lists it"})
        (run / name).unlink()
    assert looked(run, capsys, "--quick") == (0, {})


@pytest.mark.parametrize("name", ["dropped/judge/000000-00000.parquet", "tables/over_shared_texts_counts.npy"])
def test_the_checks_of_a_run_notice_a_changed_byte_too(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(run / name, -1)
    capsys.readouterr()
    assert main(["audit", str(run), "--json"]) == 1
    (check,) = (check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "files")
    assert check["detail"].startswith(f"{name}: its SHA-256 is ")


def test_a_run_of_an_earlier_version_has_no_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(json.dumps({name: manifest[name] for name in manifest if name != "files"}))
    (run / FILE).unlink()
    assert main(["audit", str(run), "--digest"]) == 2
    assert "its manifest names no list of files" in capsys.readouterr().err
    assert main(["audit", str(run)]) == 1
    assert "it names no files.jsonl" in " ".join(capsys.readouterr().out.split())


# altalign curate --repair -------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_damaged_files_are_made_anew_from_what_is_there_and_nothing_else_is(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, marks = tree(run), {path: path.stat().st_mtime_ns for path in (run / "work").rglob("0*.json")}
    damaged = [
        "shards/00001.tar",
        "dropped/judge/000000-00000.parquet",
        "tables/over_shared_texts_counts.npy",
        "work/fetch/units/00003-00000.features",
        "README.md",
    ]
    for name in damaged:
        flip(run / name, -1)
    (run / "audit" / "funnel.parquet").unlink()
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for name in [*damaged, "audit/funnel.parquet"])
    assert tree(run) == before
    assert looked(run, capsys) == (0, {})
    written = [path for path, time in marks.items() if path.stat().st_mtime_ns != time]
    assert {str(path.relative_to(run / "work")) for path in written} == {
        "write/marks/00001.json",
        "judge/units/marks/000000-00000.json",
        "fetch/units/marks/00003-00000.json",
    }
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    assert "nothing is damaged" in capsys.readouterr().out


def test_every_file_but_those_that_say_when_is_made_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(run)
    damaged = [name for name in files(run) if name not in ("run.json", "manifest.json", FILE, "config.toml")]
    for name in damaged:
        (run / name).write_bytes(b"")
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    assert tree(run) == before
    assert looked(run, capsys) == (0, {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("run.json", "nothing else has what run.json says"),
        ("notes.txt", "nothing lists it"),
        ("shards/00000.tar", "it cannot be made anew: work/ was deleted"),
    ],
)
def test_what_cannot_be_made_anew_is_named_and_left(
    run: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("shards"):
        shutil.rmtree(run / "work")
    data = (run / name).read_bytes() if (run / name).exists() else b""
    (run / name).write_bytes(data.replace(b"altalign", b"altaligm", 1) + b" " * (name != "run.json"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "log" not in path.parts}
    assert main(["curate", "run/config.toml", "--repair"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{name}: ")
    assert line.endswith(why)
    assert {path: path.read_bytes() for path in before} == before
