"""Sharded trainings under torchrun: what they learn, go on from, and leave; and runs of two machines."""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from altalign import cli
from altalign.train.exchange.encoders import trained
from altalign.train.run import checkpoints, sharded_tensors
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import STEPS, TORCHRUN, WATCHDOG_S, lines, measured, settings, started, written

pytestmark = pytest.mark.trained
# with 1e-8 AdamW moves a weight whose gradient is zero but for rounding as far as others, in any direction
ADAMW = {"name": "adamw", "epsilon": 1e-2}
SHARDED = {"loop": {"sharded": True, "chunk": 4}, "optimizer": ADAMW, "data": {"workers": 0}}
# how far off the norm of each may be: relative, absolute
MOMENTS = {"exp_avg": (1e-1, 5e-7), "exp_avg_sq": (3e-2, 1e-14), "step": (0.0, 0.0)}


def _write(folder: Path, **changed: Any) -> str:
    merged = {name: {**SHARDED.get(name, {}), **changed.get(name, {})} for name in {**SHARDED, **changed}}
    merged["loop"] = {**settings(folder)["loop"], **merged["loop"]}
    merged["data"] = {**settings(folder)["data"], **merged["data"]}
    return written(folder, **merged)


def _run(config: str, ranks: int) -> str:
    process = started(["torch.distributed.run", "--nproc-per-node", str(ranks), *TORCHRUN, config])
    out, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 0, (out, said)
    return said


def _tensors(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    """Weights after so many steps."""
    return load_file(checkpoints.folder_of(str(run), step) / "model.safetensors")


def _moments(run: Path) -> dict[str, torch.Tensor]:
    """What the optimiser keeps at the end, the parts of all ranks together."""
    place = checkpoints.folder_of(str(run), STEPS)
    return {**load_file(place / "optimizer.safetensors"), **sharded_tensors.read_moments(place / "moments", {})}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, which has the whole model."""
    folder = tmp_path_factory.mktemp("whole")
    write_run(folder / "curated", pairs(60, images=30))
    assert cli.main(["train", _write(folder, loop={"sharded": False})]) == 0
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded run of two ranks."""
    folder = tmp_path_factory.mktemp("two")
    write_run(folder / "curated", pairs(60, images=30))
    _run(_write(folder), 2)
    return folder


def _stopped(before: Path, folder: Path) -> str:
    """A copy of a run as it was after step 3, and the settings that go on with it."""
    shutil.copytree(before / "trained", folder / "trained")
    for step in (6, STEPS):
        shutil.rmtree(checkpoints.folder_of(str(folder / "trained"), step))
    return _write(folder, data={"runs": [str(before / "curated")]})


def _assert_near(ours: Path, expected: Path) -> None:
    """In float32 sums are rounded in another order; batch norm of four images makes more of it in gradients.

    Moments are compared by tensor: with this epsilon a weight of small gradients hardly depends on its `exp_avg_sq`.
    Some gradients are zero but for rounding, as those of a bias before a batch norm: these have to be small in both.
    """
    for one, other in zip(lines(ours), lines(expected), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-2)
    own, wanted = (_moments(folder / "trained") for folder in (ours, expected))
    assert own.keys() == wanted.keys()
    for name, of in wanted.items():
        relative, absolute = MOMENTS[name.rpartition("/")[2]]
        assert (own[name] - of).norm() <= relative * of.norm() + absolute, name


def test_a_sharded_run_learns_what_a_whole_one_does_and_leaves_one_model_that_others_read(
    whole: Path, two: Path
) -> None:
    _assert_near(two, whole)
    ours, expected = (_tensors(folder / "trained") for folder in (two, whole))
    assert {name: of.shape for name, of in ours.items()} == {name: of.shape for name, of in expected.items()}
    place = checkpoints.folder_of(str(two / "trained"), STEPS)
    assert len(list((place / "moments").iterdir())) == 2
    assert not [
        path for path in place.rglob("*") if path.is_file() and path.suffix not in (".safetensors", ".json", ".toml")
    ]
    model = trained(str(two / "trained")).model
    assert all(torch.equal(ours[name], of) for name, of in model.state_dict().items())
    before = measured(two / "trained")
    assert cli.main(["eval", str(two / "train.toml")]) == 0
    assert measured(two / "trained")["retrieval/held"] == before["retrieval/held"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_sharded_run_goes_on_with_another_number_of_ranks(two: Path, tmp_path: Path, ranks: int) -> None:
    """From the checkpoint after step 3: the same losses, and its moments are those that were written."""
    said = _run(_stopped(two, tmp_path), ranks)
    assert len(lines(tmp_path)) == STEPS
    _assert_near(tmp_path, two)
    assert "going on from the one before" not in said
    attempts = json.loads((tmp_path / "trained" / "run.json").read_text())["attempts"]
    assert [(one["ranks"], one["from_step"]) for one in attempts] == [(2, 0), (ranks, 3)]


def test_a_whole_run_goes_on_sharded(whole: Path, tmp_path: Path) -> None:
    _run(_stopped(whole, tmp_path), 2)
    _assert_near(tmp_path, whole)


def test_a_damaged_part_of_the_moments_is_found_and_the_checkpoint_passed_over(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(two / "trained", tmp_path / "trained")
    part = sorted((checkpoints.folder_of(str(tmp_path / "trained"), STEPS) / "moments").iterdir())[-1]
    part.write_bytes(part.read_bytes()[:-1])
    assert checkpoints.newest(str(tmp_path / "trained")) == checkpoints.folder_of(str(tmp_path / "trained"), 6)
    assert f"moments/{part.name}: not as it was written" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    "changed", [{"loop": {"speed": "compiled"}}, {"classification": {"train": "a.parquet", "test": "b.parquet"}}]
)
def test_what_does_not_go_with_it_is_one_line(
    tmp_path: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {**changed, "evaluation": {"retrieval": []}}
    assert cli.main(["train", _write(tmp_path, **changed)]) == 2
    said = capsys.readouterr().err
    assert "[loop] sharded = true with " in said
    assert said.count("\n") == 1


# Two machines: a launcher each, with folders of its own ---------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _machines(tmp_path: Path) -> list[Path]:
    """Folders with the same settings by relative paths, and a copy of the pairs each."""
    machines = [tmp_path / name for name in ("one", "two")]
    for machine in machines:
        write_run(machine / "curated", pairs(60, images=30))
        config = Path(_write(machine, run={"folder": "trained"}, data={"runs": ["curated"]}))
        assert config.parent == machine
    return machines


def _launched(machines: list[Path]) -> "list[subprocess.Popen[str]]":
    port = free_port()
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "a-run"]
    argv = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting, "-m", "altalign", "train"]
    return [
        started(
            [*argv, "train.toml", *(f"--set={one}" for one in ("loop.timeout_s=60",))],
            folder=machine,
            TMPDIR=str(machine),
        )
        for machine in machines
    ]


def _ended(processes: "list[subprocess.Popen[str]]") -> list[str]:
    try:
        return [process.communicate(timeout=WATCHDOG_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_two_machines_that_share_the_run_folder_train_one_model(whole: Path, tmp_path: Path) -> None:
    machines = _machines(tmp_path)
    (tmp_path / "shared").mkdir()
    for machine in machines:  # as each mounts it
        (machine / "trained").symlink_to(tmp_path / "shared")
    processes = _launched(machines)
    said = _ended(processes)
    assert [process.returncode for process in processes] == [0, 0], said
    (tmp_path / "as" / "trained").mkdir(parents=True)
    (tmp_path / "shared").rename(tmp_path / "as" / "trained")
    _assert_near(tmp_path / "as", whole)


def test_machines_that_do_not_share_the_run_folder_are_told_so(tmp_path: Path) -> None:
    processes = _launched(_machines(tmp_path))
    said = _ended(processes)
    assert all(process.returncode for process in processes)
    words = f"trained/config.toml: not there on {socket.gethostname()}, and the first rank has written it: machines"
    assert words in " ".join(" ".join(said).split())
