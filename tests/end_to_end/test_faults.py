"""A command that is broken off at a drawn change to the file system, and given again: it leaves what an unbroken one
leaves.

`ALTALIGN_KILLS` says how many points are drawn for what is drawn most; `make test-kills` takes 100.
"""

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.data.key import image_id
from altalign.data.stages import REPORT, STAGES
from altalign.storage import atomic_change
from tests.end_to_end import faults
from tests.end_to_end.faults import Ended
from tests.end_to_end.web_inputs import OF_SITES, Asked, answers, in_journals, pictures, requests, write_web_input
from tests.support.curations import CONFIG, tree, write_input
from tests.support.finished_runs import rows_of
from tests.web_server.pictures import picture
from tests.web_server.running import WebServer

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("ALTALIGN_KILLS", "0"))
SEED = int(os.environ.get("ALTALIGN_KILLS_SEED", "11"))
AGAIN = "run the same command again( without --rerun)?, it continues"
LINES = {
    "interrupted": rf"interrupted( \(SIG\w+\))?; {AGAIN}",
    "disk full": rf".*: no space left on the device.*; make room and {AGAIN}",
    "read only": r".*Read-only file system.*",
}
NO_REPORT = "no report was written: .*; the run is whole, and `altalign audit .*` tries again"
URLS = "urls"  # a file in the start of a command: those that it may ask for


class Command(NamedTuple):
    """A command that is broken off.

    Attributes:
        start: the fixture that returns the folder in which it is given.
        arguments: the command.
        runs: what it leaves.
        changes_runs: whether these are there before, and are the old ones or the new ones at any moment.
        stage: the one in which points are drawn; empty: in all.
    """

    start: str
    arguments: Sequence[str]
    runs: Sequence[str] = ("run",)
    changes_runs: bool = False
    stage: str = ""


CURATE = ["curate", "config.toml", "--set", "engine.workers=2"]
GROWN = ["--input", "input/part-1.parquet"]
COMMANDS = {
    "curate": Command("pool", CURATE),
    "curate from the web": Command("judged", CURATE, stage="fetch"),
    "curate other texts": Command("fetched", [*CURATE, "--rerun"]),
    "retry": Command("failed", ["retry", "run", "--reason", "http_status"]),
    "add": Command("finished", ["add", "one", *GROWN], ["one"], changes_runs=True),
    "add frozen": Command("finished", ["add", "one", *GROWN, "--mode", "frozen"], ["one"], changes_runs=True),
    "remove": Command("finished", ["remove", "one", "--keys", "keys"], ["one"], changes_runs=True),
    "merge one": Command("finished", ["merge", "grown", "--to", "made"], ["made", "grown"]),
    "merge": Command("finished", ["merge", "one", "other", "--to", "made"], ["made", "one", "other"]),
    "select a list": Command("finished", ["select", "one", "made", "--list", "keys"], ["made", "one"]),
    "select shares": Command(
        "finished", ["select", "one", "half", "rest", "--share", "0.5/0.5"], ["half", "rest", "one"]
    ),
}
# Points of `make test` or `make test-all`, and those of `make test-kills` for each 100.
POINTS = {"killed": (2, 20), "interrupted": (1, 5), "disk full": (1, 5), "read only": (1, 5)}
POINTS_OF_CURATE = {"killed": (8, 100), "interrupted": (3, 20), "disk full": (8, 20), "read only": (3, 10)}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input of a curation."""
    folder = tmp_path_factory.mktemp("pool") / "start"
    write_input(folder, rows=120)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two inputs, and one of both, whose rules decide each row by itself; and a list of keys."""
    folder = tmp_path_factory.mktemp("finished") / "start"
    write_input(folder, rows=240)
    rows = pq.read_table(folder / "input" / "part-1.parquet")
    pq.write_table(rows.slice(0, 80), folder / "input" / "part-1.parquet", row_group_size=50)
    text = CONFIG.replace("vocabulary_size = 380\n", "").replace('[decontaminate]\ntest_sets = ["tests"]\n', "")
    text = text.replace("per_text_at_most = 3", "per_text_at_most = 1000").replace("at_most = 17", "at_most = 1000")
    text = text[: text.index('[[input]]\nname = "words"')] + text[text.index("[text]") :]
    with chdir(folder):
        for run, part in {"one": "part-0", "other": "part-1"}.items():
            config = text.replace("input/*", f"input/{part}").replace('folder = "run"', f'folder = "{run}"')
            Path("config.toml").write_text(config, encoding="utf-8")
            assert main(["curate", "config.toml"]) == 0
        shutil.copytree("one", "grown")
        assert main(["add", "grown", *GROWN]) == 0
        for run in ("grown", "other"):
            shutil.rmtree(Path(run, "work"))
        keys = [row["key"] for row in rows_of(Path("one"))[:20]]
        Path("keys").write_text("\n".join(keys[::2]), encoding="utf-8")
    return folder


def from_the_web(folder: Path, server: WebServer, asked: Sequence[Asked], *arguments: str) -> Path:
    write_web_input(folder, server, asked)
    with chdir(folder):
        assert main(["curate", "config.toml", *arguments]) == 0
    return folder


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, server: WebServer) -> Path:
    """A run whose images are not fetched yet."""
    asked = [*pictures(server, 24), *answers(server)]
    return from_the_web(tmp_path_factory.mktemp("judged") / "start", server, asked, "--until", "judge")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, server: WebServer) -> Path:
    """A finished run, some of whose images could not be had and now can."""
    late = [Asked(server.url(f"/file/late-{number}.png", f"127.0.0.{1 + number % 4}")) for number in range(10)]
    folder = from_the_web(tmp_path_factory.mktemp("failed") / "start", server, [*pictures(server, 20), *late])
    for number in range(10):
        (server.folder / f"late-{number}.png").write_bytes(picture(f"late {number}"))
    (folder / URLS).write_text("\n".join(each.url for each in late), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory, server: WebServer) -> Path:
    """A finished run of fewer texts than the settings allow now."""
    folder = tmp_path_factory.mktemp("fetched") / "start"
    write_web_input(folder, server, [*pictures(server, 20), *answers(server)])
    path = folder / "input" / "pairs.parquet"
    new = [server.url(f"/png/new-{number}", f"127.0.0.{1 + number % 4}") for number in range(10)]
    rows = pa.table({"url": new, "caption": [f"few words of {number}" for number in range(10)]})
    pq.write_table(pa.concat_tables([pq.read_table(path), rows]), path)
    with chdir(folder):
        assert main(["curate", "config.toml", "--set", "text.words_at_least=6"]) == 0
    (folder / URLS).write_text("\n".join(new), encoding="utf-8")
    return folder


class Whole(NamedTuple):
    """What an unbroken command changes, and leaves in its folder."""

    changes: list[str]
    folder: Path


@pytest.fixture(scope="module")
def unbroken() -> dict[str, Whole]:
    """Those that were given already, by the name of the command."""
    return {}


def files(folder: Path, command: Command, *, halves: bool = True) -> dict[str, dict[str, str]]:
    """The digests of the files of each run, without what belongs to no run yet and what no decision waits for."""
    left = {run: tree(folder / run) for run in command.runs}
    if command.start == "finished":  # a report is written after the change
        others = (atomic_change.FOLDER, atomic_change.ADDING)
        left = {
            run: {name: of for name, of in found.items() if name.split("/")[0] not in others and name not in REPORT}
            for run, found in left.items()
        }
    return {
        run: {name: of for name, of in found.items() if halves or "partial-" not in name} for run, found in left.items()
    }


def names(folder: Path, command: Command) -> list[str]:
    """Every name in the runs and in the folder of temporary files."""
    inside = [path for name in (*command.runs, "temp") for path in (folder / name).rglob("*")]
    return sorted(str(path.relative_to(folder)) for path in inside)


def points(name: str, fault: str, changes: Sequence[str]) -> list[int]:
    some, of_a_hundred = (POINTS_OF_CURATE if name == "curate" else POINTS)[fault]
    return faults.drawn(changes, max(some, KILLS * of_a_hundred // 100), f"{SEED} {name} {fault}", COMMANDS[name].stage)


def everyday() -> list[Any]:
    """Every command with every fault; `make test` breaks off curations alone."""
    return [
        pytest.param(command, fault, marks=[pytest.mark.everyday] if command == "curate" else [])
        for command in COMMANDS
        for fault in faults.FAULTS
    ]


@pytest.mark.parametrize(("name", "fault"), everyday())
def test_a_command_that_is_broken_off_is_given_again(
    name: str, fault: str, unbroken: dict[str, Whole], server: WebServer, request: pytest.FixtureRequest
) -> None:
    command = COMMANDS[name]
    start: Path = request.getfixturevalue(command.start)
    if name not in unbroken:
        folder = faults.copied(start, name)
        unbroken[name] = Whole(faults.changes(folder, command.arguments), folder)
    whole = unbroken[name]
    drawn, missed = points(name, fault, whole.changes), 0
    if name == "curate" and fault in ("killed", "disk full"):
        assert {faults.stages_of(whole.changes)[point - 1] for point in drawn} == {"", *STAGES, "end"}
    for point in drawn:
        new, before = faults.copied(start, f"{name}, {fault} at {point}"), requests(server.log)
        had = in_journals(new / "run") if name == "retry" else set[str]()
        ended = faults.give(new, command.arguments, faults.FAULTS[fault], point)
        at = f"{point} of {len(whole.changes)}, {ended.at or 'never reached'}: {ended.output}"
        missed += not ended.at
        if ended.at:
            check_end(fault, point, ended, new, at, runs=len(command.runs))
        if command.changes_runs:
            check_old_or_new(command, start, new, whole, at)
        had |= in_journals(new / "run")
        if fault == "killed" and point % 3 == 0:
            faults.give(new, command.arguments, faults.FAULTS[fault], 1 + point * 7 % len(whole.changes))
        for arguments in [CURATE, command.arguments] if name == "retry" and point % 2 else [command.arguments]:
            again = faults.give(new, arguments)
            assert (again.code, again.errors) == (0, []), f"{at}\n{again.output}"
        assert files(new, command) == files(whole.folder, command), at
        assert names(new, command) == names(whole.folder, command), at
        check_requests(start, requests(server.log) - before, had, at)
        shutil.rmtree(new)
    assert missed <= 1 + len(drawn) // 10  # threads change their order a little


def check_end(fault: str, point: int, ended: Ended, folder: Path, at: str, *, runs: int) -> None:
    """It ends as the fault says, in one line, or one for each of its runs that has no report; nothing is left but by
    what can leave nothing better."""
    number = faults.SIGNALS[point % len(faults.SIGNALS)]
    codes = {"killed": [-signal.SIGKILL], "interrupted": [128 + number], "disk full": [1], "read only": [1, 2]}
    lacks_report = ended.code == 0 and fault in ("disk full", "read only")  # and is whole
    assert lacks_report or ended.code in codes[fault], at
    assert ended.orphans == [], at
    if fault == "killed":
        return
    assert len(ended.errors) == 1 or (lacks_report and len(ended.errors) <= runs), at
    line = f"altalign: {NO_REPORT if lacks_report else LINES[fault]}"
    assert all(re.fullmatch(line, error) for error in ended.errors), at
    assert "Traceback" not in ended.output, at
    assert "Exception ignored" not in ended.output, at
    if fault != "read only":  # there halves cannot be deleted
        assert [path for path in folder.rglob("*") if "partial-" in path.name or path.match("work/temporary")] == [], at


def check_old_or_new(command: Command, start: Path, folder: Path, whole: Whole, at: str) -> None:
    """Once a command has opened them, the runs are the old ones or the new ones."""
    for run in command.runs:
        assert faults.give(folder, ["status", run]).code == 0, at
    assert files(folder, command, halves=False) in (files(start, command), files(whole.folder, command)), at


def check_requests(start: Path, asked: Counter[str], had: set[str], at: str) -> None:
    """Only what is lacking is asked for, and what was in hand is not asked for again."""
    images = {url: times for url, times in asked.items() if times and not url.endswith(OF_SITES)}
    if (start / URLS).exists():
        assert images.keys() <= {*(start / URLS).read_text(encoding="utf-8").split()}, at
    assert not {image_id(url) for url, times in images.items() if times > 1} & had, at


def test_of_two_commands_at_once_one_is_refused(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for name, command in COMMANDS.items():
        if command.start != "finished":
            continue
        folder = command.runs[0]
        (Path(folder) / "log").mkdir(parents=True, exist_ok=True)
        with storage.locked(folder):
            assert main([*command.arguments]) == 2, name
        assert "another command is at work on this run" in capsys.readouterr().err
        shutil.rmtree(tmp_path / "here")
        shutil.copytree(finished, tmp_path / "here")
        monkeypatch.chdir(tmp_path / "here")
