"""What an experiment's file comes to."""

from typing import Any

import pytest

from altalign.errors import UsageError
from experiments import plan, queue
from experiments.plan import Experiment
from tests.experiments.small import EXPERIMENT

VALUES: dict[str, Any] = EXPERIMENT.model_dump()


def test_arms_that_others_replace_come_first_and_a_stopped_queue_has_whole_seeds_of_the_others() -> None:
    found = [(job.arm, job.seed) for job in plan.jobs(EXPERIMENT)]
    others = [(arm, seed) for seed in (0, 1) for arm in ("killed", "again", "diverging", "skipped")]
    assert found == [("base", 0), ("base", 1), *others]


def test_an_arm_that_is_not_tried_has_no_run() -> None:
    arms = {**VALUES["arms"], "killed": {**VALUES["arms"]["killed"], "untried": "it costs too much"}}
    assert "killed" not in {job.arm for job in plan.jobs(Experiment.model_validate({**VALUES, "arms": arms}))}


def test_sets_that_the_base_needs_are_those_of_every_arm() -> None:
    assert all("classes" in job.sets for job in plan.jobs(EXPERIMENT.model_copy(update={"needs": ["classes"]})))


def test_a_larger_experiment_has_more_steps_wider_towers_and_other_digests() -> None:
    phases = {"settings": {"phases": [{"name": "only", "settings": {"schedule": {"steps": 7, "peak": 0.1}}}]}}
    more = {**VALUES, "arms": {**VALUES["arms"], "phased": {"about": "phases", **phases}}}
    before = Experiment.model_validate(more)
    jobs = {job.name: job for job in plan.jobs(plan.scaled(before, 3))}
    base, phased = jobs["base-0"].settings, jobs["phased-0"].settings
    assert base["schedule"] == {"steps": 12, "warmup_steps": 3}
    assert (base["image_tower"]["width"], base["image_tower"]["depth"]) == (pytest.approx(1.02), 0.1)
    assert (base["text_tower"]["width"], base["text_tower"]["heads"], base["text_tower"]["layers"]) == (48, 6, 1)
    assert phased["phases"][0]["settings"]["schedule"] == {"steps": 21, "peak": 0.1}
    assert base["data"] == next(plan.jobs(before)).settings["data"]
    assert {job.digest for job in plan.jobs(before)}.isdisjoint(job.digest for job in jobs.values())
    assert plan.scaled(before, 1) == before


def test_arms_of_absent_sets_are_left_out() -> None:
    assert {job.arm for job in plan.jobs(EXPERIMENT, absent={"far away"})} == {"base", "killed", "again", "diverging"}
    assert list(plan.jobs(EXPERIMENT, absent={"others"})) == []


def test_an_arm_has_the_settings_of_the_base_and_its_own() -> None:
    job = next(job for job in plan.jobs(EXPERIMENT) if job.arm == "diverging")
    assert job.settings["schedule"] == {"steps": 4, "warmup_steps": 1, "peak": 1e30}
    assert job.settings["data"]["runs"] == ["data/kites"]
    assert [one["path"] for one in job.settings["evaluation"]["retrieval"]] == ["data/others"]


def test_an_arm_that_extends_another_has_its_settings_below_its_own() -> None:
    first = {"about": "first", "settings": {"loss": {"mixup": 0.1}, "schedule": {"peak": 2.0}}}
    second = {"about": "second", "extends": "first", "settings": {"schedule": {"peak": 3.0}}, "needs": ["words"]}
    more = Experiment.model_validate({**VALUES, "arms": {**VALUES["arms"], "first": first, "second": second}})
    jobs = {job.arm: job for job in plan.jobs(more) if not job.seed}
    assert jobs["second"].settings["loss"] == {"temperature": 0.1, "mixup": 0.1}
    assert jobs["second"].settings["schedule"] == {"steps": 4, "warmup_steps": 1, "peak": 3.0}
    assert jobs["first"].settings["schedule"]["peak"] == 2.0
    assert jobs["second"].sets == {"kites", "others", "words"}
    assert {job.arm for job in plan.jobs(more, absent={"words"})} == {*VALUES["arms"], "first"}


@pytest.mark.parametrize(
    ("base", "over", "both"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"b": {"c": 2}}, {"a": 1, "b": {"c": 2}}),
        ({"a": 1}, {"a": {"c": 2}}, {"a": {"c": 2}}),
        ({}, {}, {}),
    ],
)
def test_settings_over_others(base: dict[str, Any], over: dict[str, Any], both: dict[str, Any]) -> None:
    assert plan.merged(base, over) == both


def test_a_digest_is_of_what_a_result_depends_on() -> None:
    def digests(**changed: Any) -> list[str]:
        arm = {"about": "base", **changed}
        changed_one = Experiment.model_validate({**VALUES, "arms": {**VALUES["arms"], "base": arm}})
        return [job.digest for job in plan.jobs(changed_one) if job.arm == "base"]

    before = digests()
    assert len(set(before)) == 2  # of two seeds
    assert digests(about="other words", paper={"rsum": "higher"}) == before
    for change in ({"ranks": 2}, {"variant": "x"}, {"train": ["others"]}, {"settings": {"loss": {"mixup": 0.1}}}):
        assert not set(digests(**change)) & set(before)


def test_a_digest_is_of_the_version_of_the_code_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {job.digest for job in plan.jobs(EXPERIMENT)}
    monkeypatch.setattr(plan, "NUMBERS_VERSION", plan.NUMBERS_VERSION + 1)
    assert not before & {job.digest for job in plan.jobs(EXPERIMENT)}


def test_an_arm_may_have_seeds_of_its_own() -> None:
    arms = {**VALUES["arms"], "base": {"about": "base", "seeds": [0, 1, 2]}}
    more = Experiment.model_validate({**VALUES, "arms": arms})
    assert [job.seed for job in plan.jobs(more) if job.arm == "base"] == [0, 1, 2]
    assert [job.seed for job in plan.jobs(more) if job.arm == "again"] == [0, 1]
    assert (more.seeds_of("base"), more.seeds_of("base", "again")) == ([0, 1, 2], [0, 1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arms": {"a": {"about": "a", "replaces": "b"}}}, "arms: again, b, .*: no such arm"),
        ({"sections": [{"title": "t", "about": "", "arms": ["c"]}]}, "arms: c: no such arm"),
        ({"sections": [{"title": "t", "about": "", "arms": ["base"], "measures": ["x"]}]}, "measures: no words for x"),
        ({"seeds": [1]}, "seeds"),
        ({"arms": {**VALUES["arms"], "again": {"about": "a", "paper": {"rsum": "same"}}}}, "margins: none for rsum"),
    ],
)
def test_a_mistake_is_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Experiment.from_values({**VALUES, **changed}, where="small.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [path.stem for path in (queue.ROOT / "experiments").glob("*.toml")])
def test_every_experiment_of_ours_names_sets_variants_and_settings_that_are_there(name: str) -> None:
    from importlib import import_module

    from altalign.train.settings.training import TrainConfig

    module = import_module(f"experiments.{name}")
    for job in plan.jobs(queue.read(name)):
        assert job.sets <= module.SETS.keys()
        assert not job.variant or job.variant in module.VARIANTS
        TrainConfig.from_values(job.settings, where=job.name)
