"""A training whose run has changed: refused, or told to go on; then what it went through before is still known."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from altalign import cli, storage
from altalign.errors import UsageError
from altalign.train.data import steps_of_pair
from altalign.train.data.steps_of_pair import Trained
from altalign.train.data.training_data import samples_of
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import Pair, pairs, write_run
from tests.support.trained_folders import write_trained
from tests.train.test_training_run import STEPS, settings, written

pytestmark = pytest.mark.trained

LEFT, BATCH = 3, 16  # the step of the checkpoint that is left, and pairs of a batch
BEFORE, ADDED = pairs(60, images=30), pairs(40, images=40, first=100)
REMOVED = BEFORE[:12]


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def write_curated(folder: Path, of: Sequence[Pair]) -> None:
    """A finished run whose manifest has its seal, which `altalign status --lineage` compares."""
    write_run(folder, of)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    lineage = {"operation": "subset", "settings": {}, "parents": ["c" * 64], "before": [None]}
    storage.write_sealed(str(folder / "manifest.json"), {**manifest, "files": {"sha256": "d" * 64}, "lineage": lineage})


def seen(run: Path, of: Sequence[Pair], last: int) -> dict[str, list[int]]:
    """The steps that had each pair in their batch."""
    trained = Trained(TrainConfig.load(str(run / "config.toml"), [f"run.folder={json.dumps(str(run))}"]))
    return {pair.key: [each.step for each in trained.steps(frozenset([pair.key]), last)] for pair in of}


@pytest.mark.parametrize("data", [{}, {"sampling": "distinct_images"}], ids=["any images", "distinct images"])
def test_a_training_goes_on_with_a_changed_run_only_if_told_to(
    data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_curated(tmp_path / "curated", BEFORE)
    config = written(tmp_path, data={**settings(tmp_path)["data"], **data})
    assert cli.main(["train", config]) == 0
    run = tmp_path / "trained"
    before = seen(run, BEFORE, LEFT)
    assert sum(map(len, before.values())) == LEFT * BATCH
    for step in (6, 8):
        shutil.rmtree(run / "checkpoints" / f"step-{step:07}")
    shutil.rmtree(tmp_path / "curated")
    write_curated(tmp_path / "curated", [*BEFORE[len(REMOVED) :], *ADDED])

    code, _, said = told(capsys, "train", config)
    assert code == 2
    assert "the curated [data] runs are not as this run began with" in said
    assert "go on with `altalign train --data-changed`" in said
    assert len(said.splitlines()) == 1
    assert seen(run, BEFORE, LEFT) == before  # nothing was made anew

    code, _, said = told(capsys, "train", config, "--data-changed")
    assert code == 0
    assert f"data changed after step {LEFT}" in said
    assert json.loads((run / "run.json").read_text())["finished"]
    after = seen(run, [*BEFORE, *ADDED], STEPS)
    assert sum(map(len, after.values())) == STEPS * BATCH
    assert {key: [step for step in after[key] if step <= LEFT] for key in before} == before
    assert any(after[pair.key] for pair in REMOVED)  # seen before, and it is known that they were
    assert max(step for pair in REMOVED for step in after[pair.key]) <= LEFT
    assert min(step for pair in ADDED for step in after[pair.key]) > LEFT

    assert told(capsys, "train", config)[0] == 0  # as it is now, it is the run's own data
    _, out, _ = told(capsys, "status", "--lineage", str(run), "--key", REMOVED[0].key)
    assert f"until step {LEFT}: " in out
    assert f"key {REMOVED[0].key}: in " in out


class _EndedError(BaseException):
    pass


def _ended(*_: object, **__: object) -> None:
    raise _EndedError


def test_a_change_that_was_ended_in_the_middle_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_curated(tmp_path / "curated", BEFORE)
    folder = write_trained(tmp_path / "trained", data={"runs": [str(tmp_path / "curated")]})
    config = TrainConfig.load(f"{folder}/config.toml", [f"run.folder={json.dumps(folder)}"])
    pairs_before = len(samples := samples_of(config))
    storage.write_json(f"{folder}/run.json", {"manifests": samples.runs.manifests, "pairs": pairs_before})
    shutil.rmtree(tmp_path / "curated")
    write_curated(tmp_path / "curated", BEFORE[len(REMOVED) :])
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_json", _ended)
        with pytest.raises(_EndedError):
            samples_of(config, data_changed=True)
    with pytest.raises(UsageError, match="--data-changed"):
        samples_of(config)
    for _ in range(2):
        assert len(samples_of(config, data_changed=True)) == pairs_before - len(REMOVED)
    (change,) = steps_of_pair.changes(config)
    assert (change["step"], change["pairs"]) == (5, pairs_before)
    assert storage.read_json(f"{steps_of_pair.index_until(config, 5)}/index.json")["asked"]["manifests"] == [
        *change["manifests"].values()
    ]


def test_phases_rest_on_the_pairs_of_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = told(
        capsys, "train", "configs/nlip-demo.toml", "--data-changed", "--set", f'run.folder="{tmp_path}"'
    )
    assert code == 2
    assert "has [[phases]], which rest on each other's pairs" in said
