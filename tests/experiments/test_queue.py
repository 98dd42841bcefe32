"""The queue, on a small experiment that is trained for real."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from altalign.errors import AltalignError
from altalign.train import NUMBERS_VERSION
from experiments import page, plan, queue
from experiments.__main__ import write_results
from tests.experiments.small import EXPERIMENT

pytestmark = pytest.mark.trained
MODULE = "tests.experiments.small"


def test_a_killed_queue_goes_on_and_trains_no_run_twice(tmp_path: Path) -> None:
    with pytest.raises(AltalignError, match=r"of 8 runs are not finished, .* it continues"):
        queue.run(MODULE, EXPERIMENT, tmp_path, processes=1)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "finished").iterdir()}
    assert before.keys() == {"base-0.json", "base-1.json"}  # the next run ended its process

    absent = queue.run(MODULE, EXPERIMENT, tmp_path, processes=2)

    assert absent == {"far away": "it is far away"}
    results = queue.results(tmp_path)
    assert set(results) == {f"{arm}-{seed}" for arm in ("base", "killed", "again", "diverging") for seed in (0, 1)}
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "finished").iterdir()}
    assert {name: after[name] for name in before} == before
    assert list((tmp_path / "runs").iterdir()) == []  # what they leave behind is deleted

    # a run that was killed came to the same as the others; one that diverges is a result
    for seed in (0, 1):
        of = {arm: results[f"{arm}-{seed}"]["values"] for arm in ("base", "killed", "again")}
        assert of["killed"]["rsum"] == of["again"]["rsum"] == of["base"]["rsum"]
        assert of["killed"]["loss"] == of["again"]["loss"] == of["base"]["loss"]
        assert results[f"diverging-{seed}"]["failed"] == "loss or gradient is not finite at step 2"
    assert results["base-0"]["values"]["loss"] != results["base-1"]["values"]["loss"]

    place = tmp_path / "docs" / "small.json"
    write_results(place, EXPERIMENT, tmp_path, absent)
    found = json.loads(place.read_bytes())
    assert found["absent"] == {"skipped": "it is far away"}
    assert found["runs"]["base-1"]["code"] == queue.code()
    kept = {name: results["base-1"]["values"][name] for name in ("rsum", "cpu_s", "wall_s")}
    assert found["runs"]["base-1"]["values"] == pytest.approx(kept, abs=1e-6)
    assert "it is far away" in page.markdown("small", EXPERIMENT, found)


def test_a_run_that_is_trained_again_comes_to_the_same_or_is_named(tmp_path: Path) -> None:
    alone = EXPERIMENT.model_copy(update={"arms": {"base": EXPERIMENT.arms["base"]}, "seeds": [0], "sections": []})
    with pytest.raises(AltalignError, match="no run of these settings and this code has ended"):
        queue.again(MODULE, alone, tmp_path)
    queue.run(MODULE, alone, tmp_path, processes=1)
    assert re.fullmatch(r"base-0, trained again: all \d+ measures are the same", queue.again(MODULE, alone, tmp_path))
    place = tmp_path / "finished" / "base-0.json"
    result = json.loads(place.read_bytes())
    result["values"]["loss"] += 0.25
    place.write_text(json.dumps(result))
    with pytest.raises(AltalignError, match=r"^base-0: loss was .* and is .*; \d+ measures are the same$"):
        queue.again(MODULE, alone, tmp_path)
    assert json.loads(place.read_bytes()) == result  # what was found first stands


def test_two_ranks_come_to_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    queue.make_sets(MODULE, ["kites", "others"], tmp_path)
    one = next(plan.jobs(EXPERIMENT))
    found = [queue.trained(MODULE, job)["values"] for job in (one, replace(one, arm="ranks", ranks=2))]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=1e-4)


def test_a_run_that_cannot_be_trained_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AltalignError, match="data/kites"):  # the sets are not there
        queue.trained(MODULE, next(plan.jobs(EXPERIMENT)))
    assert queue.results(tmp_path) == {}


def test_a_run_of_other_settings_than_its_result_is_trained_again() -> None:
    planned = list(plan.jobs(EXPERIMENT, absent={"far away"}))
    finished = {job.name: job.digest for job in planned}
    assert plan.left(planned, finished) == []
    assert plan.left(planned, {**finished, "again-1": "of other settings"}) == [planned[6]]


def test_results_that_are_committed_count_as_finished_where_their_settings_are_the_same(tmp_path: Path) -> None:
    jobs = {job.name: job for job in plan.jobs(EXPERIMENT)}

    def run(name: str, digest: str = "") -> dict[str, object]:
        return {"digest": digest or jobs[name].digest, "values": {"rsum": 1.0}, "failed": ""}

    (tmp_path / "finished").mkdir()
    own = {**run("base-0"), "values": {"rsum": 2.0}}
    (tmp_path / "finished" / "base-0.json").write_text(json.dumps(own))
    committed = {"base-0": run("base-0"), "again-1": run("again-1"), "again-0": run("again-0", "of other settings")}
    queue.remember(tmp_path, EXPERIMENT, {**committed, "base-1": {"values": {}, "failed": ""}})
    assert queue.results(tmp_path) == {"base-0": own, "again-1": run("again-1")}
    assert len(plan.left(list(jobs.values()), queue.digests(tmp_path))) == len(jobs) - 2


@pytest.mark.parametrize("name", [path.stem for path in (queue.ROOT / "docs" / "experiments").glob("*.json")])
def test_a_committed_result_of_this_code_has_its_version_and_commit(name: str) -> None:
    """Those of other code are shown until they are trained again, and have no verdict."""
    place = queue.ROOT / "docs" / "experiments" / f"{name}.json"
    found = json.loads(place.read_bytes())
    assert found["runs"]
    for run in page.counted(queue.read(name), found)["runs"].values():
        assert run["code"].startswith(f"{NUMBERS_VERSION} of ")
