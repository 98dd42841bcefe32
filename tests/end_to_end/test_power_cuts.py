"""A run whose power is cut, at points drawn by a seed over all changes, goes on to the same bytes or says in one line
what is wrong.

`ALTALIGN_POWER_CUTS` says how many points; `make test-power-cuts` takes 300.
"""

import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from altalign.cli import main
from altalign.data.stages import STAGES
from tests.end_to_end.killing import forked, fresh, of_stage
from tests.end_to_end.power_cuts import Recording, after_cut, recorded
from tests.end_to_end.runs import tree, write_input

pytestmark = pytest.mark.faults

CUTS = int(os.environ.get("ALTALIGN_POWER_CUTS", "12"))
SEED = int(os.environ.get("ALTALIGN_POWER_CUTS_SEED", "3"))
OTHERS = ("--set", "text.words_at_least=4", "--set", "image.short_side_above_px=210")


class Recorded(NamedTuple):
    """A run whose changes were recorded, in a folder with its input, and what it left."""

    folder: Path
    recording: Recording
    command: Sequence[str]
    before: Path | None
    tree: dict[str, str]


def record(folder: Path, *command: str, before: Path | None = None) -> Recorded:
    with recorded(folder / "run") as recording, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", *command]) == 0
    return Recorded(folder, recording, command, before, tree(folder / "run"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("power")
    write_input(folder, rows=90)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Recorded:
    """A run from nothing to its end."""
    return record(folder)


@pytest.fixture(scope="module")
def anew(folder: Path, whole: Recorded) -> Recorded:
    """The same with other settings, over what the first has left."""
    shutil.copytree(whole.folder / "run", folder / "first")
    return record(folder, *OTHERS, "--rerun", before=folder / "first")


@pytest.fixture(scope="module")
def hasty(folder: Path, anew: Recorded) -> Recorded:
    """A run from nothing that never waits for the disk."""
    shutil.move(folder / "run", folder / "second")
    return record(folder, "--set", "run.durable=false")


def gone_on(of: Recorded, cut: int, *, share: float = 0.7) -> tuple[int, str, dict[str, str]]:
    """Exit code, what is said, and what is left, where a run goes on after a cut."""
    new = fresh(of.folder, f"cut-{cut}")
    after_cut(of.recording, cut, random.Random(f"{SEED} {cut}"), new / "run", share=share, before=of.before)
    try:
        code = forked(new, lambda: curated(*of.command), "said")
        return code, (new / "said").read_text(encoding="utf-8"), tree(new / "run")
    finally:
        shutil.rmtree(new)


def curated(*command: str) -> int:
    """What the command says goes to the process's own streams, whoever has caught Python's."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    try:
        return main(["curate", "config.toml", *command])
    finally:
        sys.stderr.flush()


def points(of: Recorded, count: int) -> list[int]:
    """Numbers of changes: as many in each stage, as far as there are."""
    by_stage: dict[str, list[int]] = {}
    for number, change in enumerate(of.recording.changes):
        by_stage.setdefault(of_stage(f"run/{change.path}"), []).append(number)
    rng, drawn = random.Random(SEED), list[int]()
    while len(drawn) < min(count, len(of.recording.changes)):
        for numbers in by_stage.values():
            if numbers and len(drawn) < count:
                drawn.append(numbers.pop(rng.randrange(len(numbers))))
    return sorted(drawn)


@pytest.mark.everyday
def test_a_run_that_waits_for_the_disk_goes_on_to_the_same_bytes(whole: Recorded) -> None:
    assert {of_stage(f"run/{change.path}") for change in whole.recording.changes} == {"", *STAGES}
    for cut in points(whole, CUTS // 2):
        code, said, left = gone_on(whole, cut)
        assert code == 0, (cut, said)
        assert left == whole.tree, (cut, said)
        assert "made anew" not in said, (cut, said)  # what a mark names is there: the order sees to it


@pytest.mark.everyday
def test_so_does_one_that_is_made_anew_with_other_settings(anew: Recorded) -> None:
    for cut in points(anew, CUTS // 4):
        code, said, left = gone_on(anew, cut)
        assert code == 0, (cut, said)
        assert left == anew.tree, (cut, said)


def test_one_that_does_not_wait_goes_on_to_the_same_bytes_or_says_what_is_wrong(hasty: Recorded) -> None:
    rng, went_on = random.Random(SEED), 0
    cuts = points(hasty, CUTS // 4)
    others = random.Random(SEED).sample(points(hasty, len(hasty.recording.changes)), CUTS)
    for number, cut in enumerate((*cuts, *others)):
        if number >= len(cuts) and went_on:  # until one was drawn at which something was damaged, and mended
            break
        code, said, left = gone_on(hasty, cut, share=rng.choice([0.01, 0.1]))
        lines = [line for line in said.splitlines() if line.startswith("altalign: ")]
        assert "Traceback" not in said
        if code == 0:
            assert left == hasty.tree, (cut, said)
            went_on += "made anew" in said
        else:
            assert len(lines) == 1, (cut, said)
    assert went_on
