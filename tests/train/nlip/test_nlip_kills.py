"""NLIP's phases, killed at many points of each and gone on with, in one process and in two; and under torchrun."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from altalign.settings.common import dump
from altalign.train.data.noise_estimates import FILE
from altalign.train.data.training_data import CAPTIONS
from tests.support.run_folders import pairs
from tests.train.nlip.phased import PHASES, config
from tests.warm.python import warm

pytestmark = pytest.mark.trained
ROOT = Path(__file__).parents[3]
WATCHDOG_S = 600


def run(python: str, *arguments: str) -> None:
    held = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python}  # torchrun's
    done = subprocess.run(
        [python, "-m", *arguments], cwd=ROOT, env=held, capture_output=True, text=True, timeout=WATCHDOG_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])


def left(run_folder: Path) -> dict[str, str]:
    """Digests of what phases leave: checkpoints, noise and captions."""
    wanted = ("model.safetensors", "optimizer.safetensors", "optimizer.json", Path(FILE).name, Path(CAPTIONS).name)
    found = [path for path in run_folder.rglob("*") if path.name in wanted]
    return {str(path.relative_to(run_folder)): sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_phases_that_are_killed_anywhere_go_on_to_the_same_bytes(tmp_path: Path, ranks: int) -> None:
    config(tmp_path, "whole")  # which writes the pairs
    run(sys.executable, "tests.train.nlip.phased", str(tmp_path), str(ranks))
    whole = left(tmp_path / "whole")
    assert len(whole) == 4 * 3 * 3 + 2  # three checkpoints of each training, a table of noise and one of captions
    assert left(tmp_path / "in-parts") == whole
    for phase in PHASES:
        if phase.get("does", "train") == "train":
            assert (tmp_path / "in-parts" / "phases" / phase["name"] / "report.html").is_file()
    assert not [path for path in (tmp_path / "in-parts").rglob("*") if path.name == "parts" or ".partial" in path.name]
    rows = pq.read_table(tmp_path / "whole/phases/captioning" / CAPTIONS).to_pylist()
    assert [row["key"] for row in rows] == sorted(pair.key for pair in pairs(24))
    assert all(row["caption"] and row["log_probability"] < 0 for row in rows)
    if ranks == 2:
        of_ranks = config(tmp_path, "torchrun").model_dump(mode="json", exclude_none=True)
        (tmp_path / "phases.toml").write_text(dump(of_ranks), encoding="utf-8")
        at_once = ("--nproc-per-node", "2", "--standalone", "-m", "altalign", "train", str(tmp_path / "phases.toml"))
        run(warm(), "torch.distributed.run", *at_once)
        of_torchrun, name = left(tmp_path / "torchrun"), f"phases/captioning/{CAPTIONS}"
        tables = [pq.read_table(tmp_path / folder / name) for folder in ("whole", "torchrun")]
        assert tables[0].equals(tables[1])  # of parts of another size, which are groups of rows
        assert {**of_torchrun, name: ""} == {**whole, name: ""}
