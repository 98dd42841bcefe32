"""Every bad input ends as its case says, with the good records beside it kept, bounded memory, and no traceback.

One run of the command reads all files, each as an input of its own; its counts, dropped rows and shards are held
against the cases. Files that stop a run, or are refused before any work, have runs of their own.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data.reasons import REASONS
from tests.hostile import make
from tests.hostile.cases import Case, matches, message
from tests.made_once import made_once

pytestmark = pytest.mark.hostile

ROOT = Path(__file__).parents[2]
# of the run over all files, of two at once, and below 2 GB: 0.3 GB are the program, 0.5 GB an image of 256 MB while its
# pieces become one
PEAK_MIB = 1_850
SPACE_BYTES = 8 << 30  # of addresses: threads, kernels and mapped files take some that is not memory
HANG_S = 900  # ends a run that hangs; one takes half a minute

# The command as a user calls it, with a limit; its peak goes to a file.
PROGRAM = f"""
import resource, sys
from pathlib import Path
from altalign.cli import main
from tests.peak import peak_bytes
resource.setrlimit(resource.RLIMIT_AS, ({SPACE_BYTES}, {SPACE_BYTES}))
code = main(["curate", "config.toml"])
Path("peak").write_text(str(peak_bytes() >> 20))
sys.exit(code)
"""


@dataclass
class Outcome:
    """What a run made of a file."""

    rows: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # by stage and reason
    kept: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> dict[str, int]:
        """Rows by reason, over all stages."""
        found: dict[str, int] = defaultdict(int)
        for rows in self.rows.values():
            for reason, count in rows.items():
                found[reason] += count
        found.pop("kept", None)
        return dict(found)


@dataclass
class Finished:
    """The run over all files."""

    output: str
    peak_mib: int
    outcomes: dict[str, Outcome]
    run: Path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that reads the files of all cases but those that are refused before any work; read only."""
    folder = made_once("hostile", tmp_path_factory, _run_over_all)
    said, peak_mib = (folder / "said").read_text(encoding="utf-8"), int((folder / "peak").read_text())
    return Finished(said, peak_mib, outcomes(folder / "run"), folder / "run")


def _run_over_all(folder: Path) -> None:
    make.write(folder, [case for case in make.every() if case.exit_code != 2], skip_unreadable=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    if ran.returncode:
        pytest.fail(
            f"{ran.stdout}{ran.stderr}\nTo find the file: python -m tests.hostile.make FOLDER NAME, and altalign "
            "curate there."
        )
    (folder / "said").write_text(ran.stdout + ran.stderr, encoding="utf-8")


def outcomes(run: Path) -> dict[str, Outcome]:
    """What a run made of each of its inputs, by name."""
    found: dict[str, Outcome] = defaultdict(Outcome)
    for row in pq.read_table(run / "counts.parquet").to_pylist():
        found[row["source"]].rows[row["stage"]][row["reason"]] = row["rows"]
    for path in sorted(run.glob("shards/*.parquet")):
        for row in pq.read_table(path, columns=["source", "caption"]).to_pylist():
            found[row["source"]].kept.append(row["caption"])
    for path in sorted(run.glob("dropped/extract/broken-*.parquet")):
        for row in pq.read_table(path, columns=["source", "error"]).to_pylist():
            found[row["source"]].errors.append(row["error"])
    return found


def named(case: Case) -> str:
    return case.name


RUN = [case for case in make.every() if not case.exit_code]
STOPPED = [case for case in make.every() if case.exit_code == 1]
REFUSED = [case for case in make.every() if case.exit_code == 2]


@pytest.mark.everyday
def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in make.every()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,60}", name) for name in names)


@pytest.mark.parametrize("case", RUN, ids=named)
def test_a_bad_record_costs_what_its_case_says_and_its_neighbours_stay(finished: Finished, case: Case) -> None:
    outcome = finished.outcomes[case.name]
    assert outcome.dropped == dict(case.dropped)
    assert sorted(outcome.kept) == case.captions
    assert [error for error in outcome.errors if not matches(case.error, error)] == []


@pytest.mark.parametrize("case", STOPPED, ids=named)
def test_a_file_that_cannot_be_read_is_one_broken_record_where_that_is_asked_for(
    finished: Finished, case: Case
) -> None:
    outcome = finished.outcomes[case.name]
    assert (outcome.dropped, outcome.kept) == ({"record_broken": 1}, [])
    assert [error for error in outcome.errors if not matches(message(case), error)] == []


def test_of_every_file_received_is_kept_and_dropped_in_every_stage(finished: Finished) -> None:
    wrong = []
    for name, outcome in finished.outcomes.items():
        stages = [outcome.rows[stage] for stage in REASONS if stage in outcome.rows]
        wrong += [name for this, following in pairwise(stages) if this.get("kept", 0) != sum(following.values())]
        if stages and stages[-1].get("kept", 0) != len(outcome.kept):
            wrong.append(name)
    assert wrong == []


def test_no_traceback_reaches_the_user_and_no_control_character(finished: Finished) -> None:
    assert "Traceback" not in finished.output
    assert "Error:" not in finished.output
    assert [character for character in finished.output if not character.isprintable() and character not in "\n\r"] == []


def test_what_explain_prints_of_hostile_rows_cannot_touch_the_terminal(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row
        for path in finished.run.rglob("dropped/**/*.parquet")
        for row in pq.read_table(path, columns=["key", "reason"]).to_pylist()
    ]
    for key in {row["reason"]: row["key"] for row in rows if row["key"]}.values():
        assert main(["explain", str(finished.run), "--key", key]) == 0
    for caption in next(case for case in make.every() if case.name == "letters-turned-round").kept:
        assert main(["explain", str(finished.run), "--text", caption]) == 0
    said = capsys.readouterr().out
    assert {character for character in said if not character.isprintable()} <= {"\n"}


def test_memory_is_bounded(finished: Finished) -> None:
    assert finished.peak_mib < PEAK_MIB


@pytest.mark.everyday
@pytest.mark.parametrize("case", [*STOPPED, *REFUSED], ids=named)
def test_a_file_that_cannot_be_read_or_does_not_fit_stops_a_run_with_one_line(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make.write(tmp_path / "one", [case], skip_unreadable=False)
    monkeypatch.chdir(tmp_path / "one")
    code = main(["curate", "config.toml", "--until", "tables"])
    said = [
        line.removeprefix("altalign: ")
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("altalign: ")
    ]
    assert code == case.exit_code
    assert len(said) == 1
    assert matches(message(case), said[0]), said[0]
    assert (tmp_path / "one" / "run").exists() == (case.exit_code == 1)
