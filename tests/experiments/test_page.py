"""Pages are what results say."""

import json
import math
from typing import Any

import pytest

from experiments import page, queue
from experiments.page import Difference
from tests.experiments.small import EXPERIMENT

DOCUMENTS = queue.ROOT / "docs" / "experiments"


def results(**arms: tuple[float | None, float | None]) -> dict[str, Any]:
    """RSUMs of arms with seeds 0 and 1; None: that run failed."""
    runs = {
        f"{arm}-{seed}": {"values": {"cpu_s": 60.0, "wall_s": 90.0} | ({} if rsum is None else {"rsum": rsum})}
        for arm, rsums in arms.items()
        for seed, rsum in enumerate(rsums)
    }
    for run in runs.values():
        run["failed"] = "" if "rsum" in run["values"] else "step 3: the loss is nan"
    return {"machine": "two cores", "absent": {"skipped": "it is far away"}, "runs": runs}


@pytest.mark.parametrize(
    ("low", "high", "paper", "said"),
    [
        (1, 3, "higher", "as in the paper"),
        (1, 3, "lower", "**against the paper**"),
        (-3, -1, "lower", "as in the paper"),
        (-3, -1, "higher", "**against the paper**"),
        (-1, 3, "higher", "not told apart"),
        (0, 3, "higher", "not told apart"),
        (-1, 3, "same", "as in the paper: no difference found"),
        (1, 3, "same", "**against the paper**"),
        (1, 3, "", ""),
        (-math.inf, math.inf, "higher", "not told apart"),
        (-math.inf, math.inf, "same", "not told apart"),
    ],
)
def test_a_verdict_is_of_the_interval_and_the_papers_direction(low: float, high: float, paper: str, said: str) -> None:
    pairs, mean = (5, (low + high) / 2) if math.isfinite(low) else (1, 1.0)
    assert page.verdict(Difference(mean, low, high, pairs), paper) == said


def test_an_arm_is_compared_over_the_seeds_that_both_have() -> None:
    one = page.compared(EXPERIMENT, results(base=(50.0, 60.0), killed=(52.0, None)), "killed", "rsum")
    assert one is not None
    assert one.difference == Difference(2.0, -math.inf, math.inf, 1)
    assert page.compared(EXPERIMENT, results(base=(50.0, 60.0)), "killed", "rsum") is None
    assert page.compared(EXPERIMENT, results(base=(50.0, 60.0)), "base", "rsum") is None


def test_a_page_has_every_arm_its_values_and_what_did_not_end() -> None:
    found = page.markdown("small", EXPERIMENT, results(base=(50.0, 60.0), killed=(53.0, 61.0), diverging=(None, 9.0)))
    assert "| base | 55.0 (50.0 to 60.0) |  |" in found
    assert "| killed once | 57.0 (53.0 to 61.0) | +2.00 ± 12.7 to base |" in found
    assert "| of a set that is not here | | it is far away |" in found
    assert "| the same again | | no run has ended |" in found
    assert "- diverging-0: step 3: the loss is nan" in found
    assert "6 of 10 runs have ended, 6 minutes of CPU on two cores; a run had 67 % of a core" in found


def test_the_interval_of_students_own_example() -> None:
    """Student (1908), hours of sleep that two drugs gave ten patients; the interval is that of R's `t.test`."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    one = page.difference(first, second)
    assert (one.mean, one.low, one.high) == pytest.approx((-1.58, -2.4598858, -0.7001142), abs=1e-6)
    assert page.difference([3.0], [1.0]) == Difference(2.0, -math.inf, math.inf, 1)


@pytest.mark.parametrize("name", [path.stem for path in DOCUMENTS.glob("*.json")])
def test_every_page_of_ours_is_that_of_its_results(name: str) -> None:
    experiment, found = queue.read(name), json.loads((DOCUMENTS / f"{name}.json").read_bytes())
    assert (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8") == page.markdown(name, experiment, found)
