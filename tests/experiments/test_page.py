"""Pages are what results say."""

import json
import math
from typing import Any

import pytest
from scipy import stats

from experiments import claims, page, plan, queue
from experiments.__main__ import committed
from experiments.page import Difference
from experiments.plan import Arm, Experiment
from tests.experiments.small import EXPERIMENT

DOCUMENTS = queue.ROOT / "docs" / "experiments"


def results(**arms: tuple[float | None, ...]) -> dict[str, Any]:
    """RSUMs of arms by seed, of this code; None: that run failed."""
    digests = {job.name: job.digest for job in plan.jobs(EXPERIMENT)}
    runs = {
        f"{arm}-{seed}": {"values": {"cpu_s": 60.0, "wall_s": 90.0} | ({} if rsum is None else {"rsum": rsum})}
        for arm, rsums in arms.items()
        for seed, rsum in enumerate(rsums)
    }
    for name, run in runs.items():
        run["failed"] = "" if "rsum" in run["values"] else "step 3: the loss is nan"
        run |= {"digest": digests.get(name, name), "code": "1 of abc"}
    return {"machine": "two cores", "absent": {"skipped": "it is far away"}, "runs": runs}


def claiming(papers: dict[str, str], *, seeds: int = 5, **more: Any) -> Experiment:
    """An experiment of a base and an arm for each claim."""
    arms = {"base": {"about": "base"}} | {
        arm: {"about": arm, "replaces": "base", "paper": {"rsum": paper}} for arm, paper in papers.items()
    }
    sections = [{"title": "All", "about": "-", "arms": list(arms)}]
    given = {"arms": arms, "sections": sections, "seeds": list(range(seeds)), "margins": {"rsum": 3.0}}
    return Experiment.model_validate({**EXPERIMENT.model_dump(), **given, **more})


def of_claims(experiment: Experiment, **differences: tuple[float, ...]) -> page.Verdicts:
    """Verdicts where the base has 50 in every run."""
    seeds = max(map(len, differences.values()))
    runs = results(base=(50.0,) * seeds, **{arm: tuple(50 + one for one in of) for arm, of in differences.items()})
    return page.verdicts(experiment, runs)


SURE, NOT_SURE, NEAR = (9.0, 10.0, 11.0, 10.0, 9.5), (-8.0, 9.0, 2.0, -3.0, 5.0), (0.1, -0.2, 0.3, -0.1, 0.0)


@pytest.mark.parametrize(
    ("apart", "paper", "said"),
    [
        (SURE, "higher", "as in the paper"),
        (SURE, "lower", "**against the paper**"),
        (SURE, "same", "**against the paper**"),
        ([-one for one in SURE], "lower", "as in the paper"),
        ([-one for one in SURE], "higher", "**against the paper**"),
        (NOT_SURE, "higher", "not told apart"),
        (NOT_SURE, "same", "not told apart"),  # that no difference was found shows nothing
        (NEAR, "same", "as in the paper: the same within 3.00"),
        (NEAR, "higher", "not told apart"),
        (SURE[:1], "higher", "not finished"),
        (NEAR[:4], "same", "not finished"),
    ],
)
def test_a_verdict_is_of_the_interval_and_the_papers_direction(apart: tuple[float, ...], paper: str, said: str) -> None:
    assert of_claims(claiming({"arm": paper}), arm=tuple(apart)).words == {("arm", "rsum"): said}


def test_p_is_that_of_scipy() -> None:
    values, others = [50 + one for one in NOT_SURE], [50.0] * 5
    one = page.difference(values, others)
    assert one.p == pytest.approx(stats.ttest_rel(values, others).pvalue)
    lower = stats.ttest_1samp(NOT_SURE, -3.0, alternative="greater").pvalue
    upper = stats.ttest_1samp(NOT_SURE, 3.0, alternative="less").pvalue
    assert one.p_within(3.0) == pytest.approx(max(lower, upper))


def test_claims_are_corrected_together_as_by_holm() -> None:
    """Holm (1979), by hand: of four p the least is set against 0.05 / 4, the next against 0.05 / 3, and so on."""
    apart = {
        "first": (9.0, 10.0, 11.0, 10.0, 9.5),  # p = 0.00001
        "second": (4.0, 9.0, 5.0, 6.0, 3.0),  # p = 0.006
        "third": (1.0, 6.0, 2.0, 7.0, 2.5),  # p = 0.03: sure alone, but not among four
        "fourth": NOT_SURE,
    }
    of_each = {arm: page.difference([50 + one for one in of], [50.0] * 5).p for arm, of in apart.items()}
    assert of_each["first"] < of_each["second"] < 0.05 / 3 < 0.05 / 2 < of_each["third"] < 0.05 < of_each["fourth"]
    together = of_claims(claiming(dict.fromkeys(apart, "higher")), **apart)
    assert [together.words[arm, "rsum"] for arm in apart] == ["as in the paper"] * 2 + ["not told apart"] * 2
    assert [together.levels[arm, "rsum"] for arm in apart] == pytest.approx([0.0125, 0.05 / 3, 0.025, 0.025])
    alone = of_claims(claiming({"third": "higher"}), third=apart["third"])
    assert alone.words["third", "rsum"] == "as in the paper"
    for arm, of in apart.items():  # the interval says what the verdict says
        one = page.difference([50 + each for each in of], [50.0] * 5)
        is_sure = together.words[arm, "rsum"] == "as in the paper"
        assert (abs(one.mean) > one.half(together.levels[arm, "rsum"])) == is_sure


def test_arms_that_learned_nothing_say_nothing_and_count_for_no_claim() -> None:
    papers, apart = {"arm": "higher", "other": "lower"}, {"arm": SURE, "other": (-40.0, -10.0, -9.0, -9.5, -10.5)}
    experiment = claiming(papers, trained_above={"rsum": 20.0})
    found = of_claims(experiment, **apart)
    assert found.words == {("arm", "rsum"): "as in the paper", ("other", "rsum"): "not trained"}
    assert found.levels == {("arm", "rsum"): 0.05}
    allowed = {**experiment.arms, "other": experiment.arms["other"].model_copy(update={"may_learn_nothing": True})}
    assert of_claims(experiment.model_copy(update={"arms": allowed}), **apart).words["other", "rsum"] != "not trained"


def test_results_of_other_code_do_not_count() -> None:
    found = results(base=(50.0, 60.0), killed=(53.0, 61.0))
    for run in found["runs"].values():
        run["digest"] = "of other code"
    claiming_one = EXPERIMENT.model_copy(deep=True)
    claiming_one.arms["killed"].paper["rsum"] = "higher"
    said = page.markdown("small", claiming_one, found)
    assert "0 of 10 runs have ended by version" in said
    assert "Of 1 claims: 1 not tried." in said
    assert "| killed once | | no run has ended | |" in said
    found["runs"]["base-0"]["digest"] = next(plan.jobs(claiming_one)).digest
    said = page.markdown("small", claiming_one, found)
    assert "1 of 10 runs have ended by version" in said
    assert "| base | 50.0 (50.0 to 50.0) |  |  |" in said


def test_an_arm_of_which_runs_are_missing_or_failed_has_no_verdict() -> None:
    papers = {"late": "higher", "failing": "higher"}
    late, failing = (59.0, 60.0, 61.0, 60.0), (59.0, 60.0, 61.0, 60.0, None)
    experiment = claiming(papers)
    found = page.verdicts(experiment, results(base=(50.0,) * 5, late=late, failing=failing))
    assert found.words == {("late", "rsum"): "not finished", ("failing", "rsum"): "not trained"}


def test_a_measure_with_a_bound_of_its_own_is_held_to_that() -> None:
    experiment = claiming({"arm": "higher"}, trained_above={"rsum": 20.0, "other": 30.0})
    found = results(base=(50.0,) * 5, arm=tuple(50 + one for one in SURE))
    for run in found["runs"].values():
        run["values"]["other"] = 10.0
    assert page.verdicts(experiment, found).words["arm", "rsum"] == "as in the paper"
    assert page.wanting(experiment, found, "arm", "third", range(5)) == "not trained"


def test_a_section_of_one_table_has_a_column_a_measure() -> None:
    section = {
        "title": "All",
        "about": "-",
        "arms": ["base", "skipped"],
        "measures": ["rsum", "cpu_s"],
        "is_one_table": True,
    }
    more = {"sections": [section], "measures": {"rsum": "RSUM", "cpu_s": "CPU"}}
    said = page.markdown(
        "small", EXPERIMENT.model_validate({**EXPERIMENT.model_dump(), **more}), results(base=(50.0, 60.0))
    )
    assert "|  | RSUM | CPU |\n| --- | ---: | ---: |\n| base | 55.0 | 60.0 |\n" in said
    assert "| of a set that is not here: it is far away |  |  |" in said


def test_an_arm_is_compared_over_the_seeds_that_both_have() -> None:
    one = page.compared(EXPERIMENT, results(base=(50.0, 60.0), killed=(52.0, None)), "killed", "rsum")
    assert one == Difference(2.0, math.inf, 1)
    assert page.compared(EXPERIMENT, results(base=(50.0, 60.0)), "killed", "rsum") is None
    assert page.compared(EXPERIMENT, results(base=(50.0, 60.0)), "base", "rsum") is None


def test_a_page_has_every_arm_its_values_and_what_did_not_end() -> None:
    found = page.markdown("small", EXPERIMENT, results(base=(50.0, 60.0), killed=(53.0, 61.0), diverging=(None, 9.0)))
    assert "| base | 55.0 (50.0 to 60.0) |  |  |" in found
    assert "| killed once | 57.0 (53.0 to 61.0) | +2.00 ± 12.7 to base | 99.6 |" in found
    assert "| of a set that is not here | | it is far away | |" in found
    assert "| the same again | | no run has ended | |" in found
    assert "- diverging-0: step 3: the loss is nan" in found
    assert (
        "6 of 10 runs have ended by version 1 of the code (abc), 6 minutes of CPU on two cores; a run had 67 %" in found
    )


def test_the_interval_of_students_own_example() -> None:
    """Student (1908), hours of sleep that two drugs gave ten patients; the interval is that of R's `t.test`."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    one = page.difference(first, second)
    low, high = one.mean - one.half(), one.mean + one.half()
    assert (one.mean, low, high, one.p) == pytest.approx((-1.58, -2.4598858, -0.7001142, 0.0028329), abs=1e-6)
    assert page.difference([3.0], [1.0]) == Difference(2.0, math.inf, 1)


def test_what_is_detectable_is_found_four_times_in_five() -> None:
    """By the noncentral t, of which the sum of two quantiles is an approximation that is a little too small."""
    pilots = (44.0, 52.0, 47.0, 60.0, 50.0, 49.0, 55.0, 42.0)
    for seeds in (5, 8):
        found = page.detectable(claiming({"arm": "higher"}, seeds=seeds), results(base=pilots[:seeds]), "arm", "rsum")
        assert found is not None
        far = found / (stats.tstd(pilots[:seeds]) * math.sqrt(2 / seeds))
        of_finding = stats.nct.sf(stats.t.isf(0.025, seeds - 1), seeds - 1, far)
        assert 0.75 < of_finding < 0.85
    assert page.detectable(claiming({"arm": "higher"}), results(base=(50.0,), arm=SURE), "arm", "rsum") is None
    assert page.detectable(claiming({"arm": "higher"}), results(base=pilots, arm=SURE), "base", "rsum") is None
    said = page.power(claiming({"arm": "higher"}), results(base=pilots[:5]))
    assert said == "arm: 5 seeds tell 14.3 apart in RSUM"


def test_the_page_of_all_claims_has_each_with_a_verdict_or_a_reason() -> None:
    never = {"about": "never", "replaces": "base", "paper": {"rsum": "lower"}, "untried": "its weights are not public"}
    experiment = claiming({"arm": "higher", "late": "same", "never": "lower"})
    experiment = experiment.model_copy(update={"arms": {**experiment.arms, "never": Arm.model_validate(never)}})
    found = results(base=(50.0,) * 5, arm=tuple(50 + one for one in SURE))
    for job in plan.jobs(experiment):
        found["runs"].get(job.name, {})["digest"] = job.digest
    said = claims.markdown({"small": (experiment, found)})
    assert "Of 3 claims: 2 not tried, 1 as in the paper." in said
    assert "## [Small](small.md)" in said
    assert "| arm; beside: base | RSUM | higher | +9.90 ± 0.92 | as in the paper |" in said
    assert "| late; beside: base | RSUM | the same | | no run has ended |" in said
    assert "| never; beside: base | RSUM | lower | | its weights are not public |" in said


def test_the_page_of_all_claims_is_that_of_the_results() -> None:
    assert (DOCUMENTS / "claims.md").read_text(encoding="utf-8") == claims.markdown(committed())


@pytest.mark.parametrize("name", [path.stem for path in DOCUMENTS.glob("*.json")])
def test_every_page_of_ours_is_that_of_its_results(name: str) -> None:
    experiment, found = queue.read(name), json.loads((DOCUMENTS / f"{name}.json").read_bytes())
    assert (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8") == page.markdown(name, experiment, found)
