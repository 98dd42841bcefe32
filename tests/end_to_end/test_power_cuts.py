"""A run whose power is cut, at points drawn by a seed over all changes, goes on to the same bytes or says in one line
what is wrong.

`ALTALIGN_POWER_CUTS` says how many points; `make test-power-cuts` takes 300.
"""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from altalign.cli import main
from altalign.data import unit_marks
from altalign.data.stages import STAGES
from tests.end_to_end import faults
from tests.end_to_end.power_cuts import Recording, after_cut, recorded
from tests.support.curations import tree, write_input

pytestmark = pytest.mark.faults

CUTS = int(os.environ.get("ALTALIGN_POWER_CUTS", "12"))
SEED = int(os.environ.get("ALTALIGN_POWER_CUTS_SEED", "3"))
OTHERS = ("--set", "text.words_at_least=4", "--set", "image.short_side_above_px=210")


class Recorded(NamedTuple):
    """A run whose changes were recorded, in a folder with its input, and what it left."""

    start: Path
    recording: Recording
    command: Sequence[str]
    before: Path | None
    tree: dict[str, str]

    @property
    def paths(self) -> list[str]:
        """The path of every change."""
        return [f"run/{change.path}" for change in self.recording.changes]


def record(start: Path, name: str, *options: str, before: Path | None = None) -> Recorded:
    folder = faults.copied(start, name)
    if before is not None:
        shutil.copytree(before, folder / "run")
    with recorded(folder / "run") as recording, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", *options]) == 0
    return Recorded(start, recording, ["curate", "config.toml", *options], before, tree(folder / "run"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input."""
    folder = tmp_path_factory.mktemp("power") / "start"
    write_input(folder, rows=90)
    return folder


@pytest.fixture(scope="module")
def whole(start: Path) -> Recorded:
    """A run from nothing to its end."""
    return record(start, "whole")


@pytest.fixture(scope="module")
def anew(start: Path, whole: Recorded) -> Recorded:
    """The same with other settings, over what the first has left."""
    return record(start, "anew", *OTHERS, "--rerun", before=whole.recording.folder)


@pytest.fixture(scope="module")
def hasty(start: Path) -> Recorded:
    """A run from nothing that never waits for the disk."""
    return record(start, "hasty", "--set", "run.durable=false")


def gone_on(of: Recorded, cut: int, *, share: float = 0.7) -> tuple[faults.Ended, dict[str, str]]:
    """How a run ends that goes on after a cut, and what it leaves."""
    new = faults.copied(of.start, f"cut-{cut}")
    after_cut(of.recording, cut, random.Random(f"{SEED} {cut}"), new / "run", share=share, before=of.before)
    try:
        return faults.give(new, of.command), tree(new / "run")
    finally:
        shutil.rmtree(new)


def points(of: Recorded, count: int) -> list[int]:
    return faults.drawn(of.paths, count, str(SEED))


@pytest.mark.everyday
def test_a_run_that_waits_for_the_disk_goes_on_to_the_same_bytes(whole: Recorded) -> None:
    assert {*faults.stages_of(whole.paths)} == {"", *STAGES, "end"}
    for cut in points(whole, CUTS // 2):
        ended, left = gone_on(whole, cut)
        assert ended.code == 0, (cut, ended.output)
        assert left == whole.tree, (cut, ended.output)
        assert "made anew" not in ended.output, (cut, ended.output)  # what a mark names is there: the order sees to it


@pytest.mark.everyday
def test_so_does_one_that_is_made_anew_with_other_settings(anew: Recorded) -> None:
    for cut in points(anew, CUTS // 4):
        ended, left = gone_on(anew, cut)
        assert ended.code == 0, (cut, ended.output)
        assert left == anew.tree, (cut, ended.output)


@pytest.mark.everyday
def test_so_does_one_whose_marks_go_into_bundles(start: Path, whole: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_marks, "BUNDLED", 2)
    bundled = record(start, "bundled")
    assert bundled.tree == whole.tree
    of_bundles = [number for number, path in enumerate(bundled.paths, 1) if "/marks/bundled" in path]
    cuts = {number + after for number in of_bundles for after in range(4)} & {*range(1, len(bundled.paths) + 1)}
    assert {*faults.stages_of([bundled.paths[cut - 1] for cut in of_bundles])} >= {"extract", "tables", "judge"}
    for cut in random.Random(SEED).sample(sorted(cuts), max(4, CUTS // 4)):
        ended, left = gone_on(bundled, cut)
        assert ended.code == 0, (cut, ended.output)
        assert left == whole.tree, (cut, ended.output)
        assert "made anew" not in ended.output, (cut, ended.output)


def test_one_that_does_not_wait_goes_on_to_the_same_bytes_or_says_what_is_wrong(hasty: Recorded) -> None:
    rng, went_on = random.Random(SEED), 0
    cuts = points(hasty, CUTS // 4)
    others = random.Random(SEED).sample(range(1, len(hasty.paths) + 1), CUTS)
    for number, cut in enumerate((*cuts, *others)):
        if number >= len(cuts) and went_on:  # until one was drawn at which something was damaged, and mended
            break
        ended, left = gone_on(hasty, cut, share=rng.choice([0.01, 0.1]))
        assert "Traceback" not in ended.output
        if ended.code == 0:
            assert left == hasty.tree, (cut, ended.output)
            went_on += "made anew" in ended.output
        else:
            assert len(ended.errors) == 1, (cut, ended.output)
    assert went_on
