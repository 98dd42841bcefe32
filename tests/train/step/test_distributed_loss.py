"""Three processes over gloo, started once, beside one process with all pairs."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import ranked
from tests.train.ranked import LOSSES, STEPS, loss_of, steps_of
from tests.warm.python import warm

ROOT = Path(__file__).parents[3]
RANKS = 3

pytestmark = pytest.mark.trained


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            # A deprecation of torch's is an error here: a user would read it at every start.
            [warm(), "-W", "error::FutureWarning", ranked.__file__, str(rank), str(RANKS), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=800)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_ranks_is_that_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    sizes, settings = LOSSES[name]
    parts = [of_rank["losses"][name] for of_rank in found[: len(sizes)]]
    expected = loss_of((sum(sizes),), 0, settings)
    for sums in ("loss", "temperature"):
        torch.testing.assert_close(
            torch.stack([part[sums] for part in parts]).sum(0), expected[sums], rtol=1e-10, atol=1e-12
        )
    for rows in ("images", "texts", "pairs"):
        torch.testing.assert_close(torch.cat([part[rows] for part in parts]), expected[rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_ranks_are_those_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    """Of equal chunks: dropout too. Every rank has the same gradients and running statistics."""
    sizes, chunk, frozen = STEPS[name]
    expected = steps_of((sum(sizes),), 0, chunk, frozen, name=name)
    for of_rank in found[: len(sizes)]:
        ours = of_rank["steps"][name]
        for result, of_one in zip(ours["results"], expected["results"], strict=True):
            assert result == pytest.approx(of_one, rel=1e-10)
            assert result["drift"] == 0
        for kind in ("gradients", "state"):
            assert ours[kind].keys() == expected[kind].keys()
            for key, value in expected[kind].items():
                torch.testing.assert_close(ours[kind][key], value, rtol=1e-8, atol=1e-10, msg=key)


@pytest.mark.parametrize("chunk", [2, 4])
def test_a_number_that_is_none_on_one_rank_stops_all_at_the_same_step(found: list[dict[str, Any]], chunk: int) -> None:
    """In two passes and in one: no rank has a gradient to apply."""
    assert [of_rank["broken"][chunk] for of_rank in found] == [
        {"is_finite": False, "gradients": 0, "named": (2,)}
    ] * RANKS


@pytest.mark.parametrize("name", [name for name, (_, _, frozen) in STEPS.items() if "text_tower" not in frozen])
def test_gradients_are_summed_over_ranks_once_a_step(found: list[dict[str, Any]], name: str) -> None:
    """However many chunks a rank has; the model's gradients fit into one of the buckets that are summed."""
    assert [of_rank["steps"][name]["reduced"] for of_rank in found[: len(STEPS[name][0])]] == [3] * len(STEPS[name][0])
