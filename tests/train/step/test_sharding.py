"""A model spread over two and four ranks learns what whole copies on them learn, and what one process does."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import sharded
from tests.train.sharded import OF_RANKS, PAIRS, trained
from tests.warm.python import warm

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.trained


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder, ranks = tmp_path_factory.mktemp("ranks"), request.param
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [warm(), "-W", "error::FutureWarning", sharded.__file__]
    started = [
        subprocess.Popen(
            [*argv, str(rank), str(ranks), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=600)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def _assert_same(ours: dict[str, Any], expected: dict[str, Any], *, within: float = 1e-10) -> None:
    """The first step to 1e-10, or as given. Later ones begin at weights that rounding has moved, and magnify that."""
    assert ours["said"] == [pytest.approx(one, rel=1e-6) for one in expected["said"]]
    assert ours["said"][0] == pytest.approx(expected["said"][0], rel=within)
    for key in ("gradients", "norm", "state"):
        torch.testing.assert_close(ours["first"][key], expected["first"][key], rtol=within, atol=within / 1000)
    torch.testing.assert_close(ours["last"]["state"], expected["last"]["state"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours["encoded"], expected["encoded"], rtol=1e-5, atol=1e-6)


def test_a_sharded_model_learns_what_whole_copies_do(found: list[dict[str, Any]]) -> None:
    """Losses, gradients and their norm, and the state after one step of the optimiser and after three, in float64."""
    for of_rank in found:
        for case in OF_RANKS[len(found)]:
            _assert_same(of_rank[case]["sharded"], of_rank[case]["whole"])


def test_a_sharded_model_learns_what_one_process_does(found: list[dict[str, Any]]) -> None:
    """Its chunks are the same, so that dropout is."""
    expected = trained("two passes, mixup", range(PAIRS), is_sharded=False)
    for of_rank in found:
        _assert_same(of_rank["two passes, mixup"]["sharded"], expected, within=1e-8)


def test_each_rank_holds_its_part_of_the_numbers(found: list[dict[str, Any]]) -> None:
    held = [of_rank["noise, AdamW"]["sharded"]["parts"] for of_rank in found]
    (whole,) = {of_rank["noise, AdamW"]["whole"]["parts"] for of_rank in found}
    assert sum(held) == whole + len(found) - 1  # the temperature is whole on each
    assert max(held) < 1.25 * whole / len(found)


def test_ranks_with_different_numbers_of_chunks_are_refused(found: list[dict[str, Any]]) -> None:
    chunks = [2] + [1] * (len(found) - 1)
    assert {of_rank["refused"] for of_rank in found} == {
        f"[loop] sharded = true: ranks have {chunks} chunks of 2; give [loop] chunk or global_batch so that they have "
        "as many"
    }


def test_each_rank_reads_its_rows_of_a_checkpoint_and_no_others(found: list[dict[str, Any]]) -> None:
    for rows in range(1, 10):
        of_rows = [of_rank["read"][rows] for of_rank in found]
        assert all(of["is_right"] and not of["whole"] for of in of_rows), rows
        assert sum(of["rows"] for of in of_rows) == rows
    assert all(of_rank["read"]["plain"] for of_rank in found)
