"""The page of an experiment: tables and verdicts, from results alone. Pure."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as students_t

from experiments.plan import Arm, Experiment, Section

Results = Mapping[str, Any]  # `runs`: what each run came to, by ARM-SEED; `absent`: reasons, by arm; `machine`


@dataclass(frozen=True)
class Difference:
    """The mean difference of pairs, and its 95 % interval; without an interval where there is one pair."""

    mean: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Compared:
    """An arm beside the one that it replaces, in one measure."""

    arm: str
    measure: str
    difference: Difference
    verdict: str


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """How much greater values are than the others at the same places, by Student's t."""
    apart = [value - other for value, other in zip(values, others, strict=True)]
    mean = fmean(apart)
    if len(apart) == 1:
        return Difference(mean, -math.inf, math.inf, 1)
    half = float(students_t.ppf(0.975, len(apart) - 1)) * stdev(apart) / math.sqrt(len(apart))
    return Difference(mean, mean - half, mean + half, len(apart))


def values(experiment: Experiment, results: Results, arm: str, measure: str) -> dict[int, float]:
    """What the finished runs of an arm measured, by seed."""
    runs = {seed: results["runs"].get(f"{arm}-{seed}", {}) for seed in experiment.seeds}
    return {seed: run["values"][measure] for seed, run in runs.items() if measure in run.get("values", {})}


def compared(experiment: Experiment, results: Results, arm: str, measure: str) -> Compared | None:
    """An arm beside what it replaces, over the seeds that both have; None where there is none."""
    replaces = experiment.arms[arm].replaces
    own, other = (values(experiment, results, name, measure) for name in (arm, replaces))
    seeds = sorted(own.keys() & other.keys())
    if not replaces or not seeds:
        return None
    apart = difference([own[seed] for seed in seeds], [other[seed] for seed in seeds])
    return Compared(arm, measure, apart, verdict(apart, experiment.arms[arm].paper.get(measure, "")))


def verdict(apart: Difference, paper: str) -> str:
    """Whether a difference is as the paper has it, in words."""
    is_sure = apart.low > 0 or apart.high < 0
    if not paper:
        return ""
    if paper == "same" and apart.pairs > 1:
        return "**against the paper**" if is_sure else "as in the paper: no difference found"
    if not is_sure:
        return "not told apart"
    return "as in the paper" if (apart.mean > 0) == (paper == "higher") else "**against the paper**"


def markdown(name: str, experiment: Experiment, results: Results) -> str:
    """The page."""
    parts = [
        f"# {experiment.title}",
        experiment.about.strip(),
        _method(name, experiment, results),
        "## In short",
        _summary(experiment, results),
        *(_section(experiment, section, results) for section in experiment.sections),
        _ends(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _method(name: str, experiment: Experiment, results: Results) -> str:
    runs = list(results["runs"].values())
    cpu_s, wall_s = (sum(run["values"][name] for run in runs) for name in ("cpu_s", "wall_s"))
    return (
        f"{len(runs)} of {len(experiment.arms) * len(experiment.seeds)} runs have ended, {cpu_s / 60:.0f} minutes of "
        f"CPU on {results['machine']}; a run had {100 * cpu_s / wall_s:.0f} % of a core. A difference is the mean over "
        f"the seeds ({', '.join(map(str, experiment.seeds))}) of an arm's value minus that of the arm it replaces, "
        "with its 95 % interval by Student's t. Where that contains 0, the arms are *not told apart*; one in twenty "
        f"intervals misses. `make experiment NAME={name}` trains what is missing, by `experiments/{name}.toml`."
    )


def _summary(experiment: Experiment, results: Results) -> str:
    """How many of the paper's claims came out, by verdict."""
    verdicts = Counter(
        one.verdict
        for section in experiment.sections
        for one in _comparisons(experiment, section, results)
        if experiment.arms[one.arm].paper.get(one.measure)
    )
    return f"Of {verdicts.total()} claims: {', '.join(f'{count} {words}' for words, count in verdicts.most_common())}."


def _comparisons(experiment: Experiment, section: Section, results: Results) -> Iterator[Compared]:
    for name in section.arms:
        for measure in section.measures:
            if one := compared(experiment, results, name, measure):
                yield one


def _section(experiment: Experiment, section: Section, results: Results) -> str:
    tables = [_table(experiment, section, results, measure) for measure in section.measures]
    return "\n\n".join([f"## {section.title}", section.about.strip(), *tables])


def _table(experiment: Experiment, section: Section, results: Results, measure: str) -> str:
    rows = [f"| {experiment.measures[measure]} | Mean (least to most) | Difference |", "|---|---:|---|"]
    rows += [_row(experiment, name, results, measure) for name in section.arms]
    return "\n".join(rows)


def _row(experiment: Experiment, name: str, results: Results, measure: str) -> str:
    arm, found = experiment.arms[name], list(values(experiment, results, name, measure).values())
    if not found:
        return f"| {arm.about} | | {results['absent'].get(name, 'no run has ended')} |"
    against = ""
    if one := compared(experiment, results, name, measure):
        against = f"{_interval(one.difference, len(experiment.seeds))} to {_short(experiment.arms[arm.replaces])}"
        against += f": {one.verdict}" if one.verdict else ""
    spread = f"{_number(min(found))} to {_number(max(found))}"
    return f"| {arm.about} | {_number(fmean(found))} ({spread}) | {against} |"


def _ends(results: Results) -> str:
    """Runs that did not come to their end, with the reason."""
    failed = [f"- {name}: {run['failed']}" for name, run in sorted(results["runs"].items()) if run["failed"]]
    return "\n".join(["## Runs that ended early", "", *failed]) if failed else ""


def _short(arm: Arm) -> str:
    return arm.about.partition(", ")[0]


def _interval(apart: Difference, seeds: int) -> str:
    """A difference with half of its interval, and of how many seeds it is where some have not ended."""
    mean = _number(apart.mean, sign="+")
    half = f" ± {_number(apart.high - apart.mean)}" if apart.pairs > 1 else " without an interval"
    of = "" if apart.pairs == seeds else f" ({apart.pairs} seed{'s' * (apart.pairs > 1)})"
    return f"{mean}{half}{of}"


def _number(value: float, *, sign: str = "") -> str:
    digits = ".1f" if abs(value) >= 10 else ".2f" if abs(value) >= 0.1 else ".3g"
    return f"{value:{sign}{digits}}"
