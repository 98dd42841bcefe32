"""How many processes a step is worth."""

import dataclasses
from pathlib import Path

import pytest

from altalign import storage
from altalign.machine import memory
from altalign.machine.memory import MB, Free
from altalign.pipelines import curate
from altalign.pipelines.curate import Step, each
from altalign.pipelines.run.image_tables import FETCHED
from altalign.pipelines.run.text_tables import JUDGED
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig

UNITS = [{"name": f"{number:05d}", "seconds": 10.0} for number in range(10)]
STEP = each(
    FETCHED,
    lambda _: UNITS,
    lambda _run, _unit: pytest.fail("nothing is done here"),
    seconds=lambda _, units: sum(unit["seconds"] for unit in units),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(memory, "free", lambda: Free(64_000 * MB, "a test"))
    config = CurateConfig.from_values({"input": [{"paths": ["-"]}], "engine": {"workers": 8}}, where="a test")
    return Run(str(tmp_path), config, ())


def test_no_more_than_there_are_units_left_and_workers(run: Run) -> None:
    assert curate._processes_for(run, STEP, UNITS) == 8
    assert curate._processes_for(run, STEP, UNITS[:3]) == 3
    for unit in UNITS[:8]:
        storage.write_json(run.mark(FETCHED.step, unit["name"]), {})
    assert curate._processes_for(run, STEP, UNITS) == 2
    storage.write_json(run.mark(FETCHED.step, UNITS[8]["name"]), {})
    assert curate._processes_for(run, STEP, UNITS) == 0


def test_none_for_a_step_that_keeps_the_lock_free_on_an_engine_and_for_a_run_in_a_store(run: Run) -> None:
    assert curate._processes_for(run, Step(JUDGED, STEP.plan, STEP.transform), UNITS) == 0
    spark = run.config.model_copy(update={"engine": run.config.engine.model_copy(update={"runner": "spark"})})
    assert curate._processes_for(dataclasses.replace(run, config=spark), STEP, UNITS) == 0
    assert curate._processes_for(dataclasses.replace(run, folder="s3://bucket/run"), STEP, UNITS) == 0
