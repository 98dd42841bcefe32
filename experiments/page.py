"""The page of an experiment: tables and verdicts, from results alone. Pure.

A verdict is of all claims of a page together: Holm's correction (1979) holds the chance that any of them errs at 5 %.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as students_t

from altalign.train import NUMBERS_VERSION
from experiments import plan
from experiments.plan import Arm, Experiment, Section

Results = Mapping[str, Any]  # `runs`: what each run came to, by ARM-SEED; `absent`: reasons, by arm; `machine`
Claim = tuple[str, str]  # an arm, and the measure in which the paper compares it with what it replaces
LEVEL = 0.05  # of all claims together, and of an interval that is of no claim
POWER = 0.8  # of finding a difference that is there


@dataclass(frozen=True)
class Difference:
    """The mean of differences of pairs, and its standard error; infinite where there is one pair."""

    mean: float
    error: float
    pairs: int

    def half(self, level: float = LEVEL) -> float:
        """Half of the interval that misses with this probability, by Student's t."""
        return self.error if math.isinf(self.error) else float(students_t.isf(level / 2, self.pairs - 1)) * self.error

    def above(self, bound: float) -> float:
        """How likely a mean so far above a bound is, or further, where the truth is the bound."""
        if math.isinf(self.error) or self.mean == bound:
            return 0.5
        return float(students_t.sf((self.mean - bound) / max(self.error, 1e-300), self.pairs - 1))

    @property
    def p(self) -> float:
        """How likely a mean so far from 0 is, or further, where there is no difference."""
        return 2 * min(self.above(0.0), 1 - self.above(0.0))

    def p_within(self, margin: float) -> float:
        """The same for a truth at the margins or beyond: of two one-sided tests the greater."""
        return max(self.above(-margin), 1 - self.above(margin))


@dataclass(frozen=True)
class Verdicts:
    """What became of all claims, and the level that Holm's correction leaves to the interval of each."""

    words: dict[Claim, str] = field(default_factory=dict)
    levels: dict[Claim, float] = field(default_factory=dict)


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """How much greater values are than the others at the same places."""
    apart = [value - other for value, other in zip(values, others, strict=True)]
    error = math.inf if len(apart) == 1 else stdev(apart) / math.sqrt(len(apart))
    return Difference(fmean(apart), error, len(apart))


def counted(experiment: Experiment, results: Results) -> Results:
    """Results of these settings and this version of the code alone."""
    digests = {job.name: job.digest for job in plan.jobs(experiment)}
    runs = {name: run for name, run in results["runs"].items() if run.get("digest") == digests.get(name, "")}
    return {**results, "runs": runs}


def values(experiment: Experiment, results: Results, arm: str, measure: str) -> dict[int, float]:
    """What the finished runs of an arm measured, by seed."""
    runs = {seed: results["runs"].get(f"{arm}-{seed}", {}) for seed in experiment.seeds_of(arm)}
    return {seed: run["values"][measure] for seed, run in runs.items() if measure in run.get("values", {})}


def compared(experiment: Experiment, results: Results, arm: str, measure: str) -> Difference | None:
    """An arm beside what it replaces, over the seeds that both have; None where there is none."""
    replaces = experiment.arms[arm].replaces
    if not replaces:
        return None
    own, other = (values(experiment, results, name, measure) for name in (arm, replaces))
    seeds = sorted(own.keys() & other.keys())
    return difference([own[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None


def detectable(experiment: Experiment, results: Results, arm: str, measure: str) -> float | None:
    """The smallest difference that an arm's seeds tell apart from what it replaces, by the spread of the latter alone.

    None where fewer than two of its runs have ended, or all measured the same. Both arms are taken to spread alike, and
    independently.
    """
    replaces = experiment.arms[arm].replaces
    pilots = values(experiment, results, replaces, measure).values() if replaces else ()
    if len(set(pilots)) < 2:
        return None
    seeds = len(experiment.seeds_of(arm, replaces))
    quantiles = sum(float(students_t.isf(one, seeds - 1)) for one in (LEVEL / 2, 1 - POWER))
    return quantiles * stdev(pilots) * math.sqrt(2 / seeds)


def power(experiment: Experiment, results: Results) -> str:
    """What each claim's seeds can tell apart, as the pilots spread: a line each."""
    lines = []
    for arm, measure in claims(experiment):
        if (smallest := detectable(experiment, results, arm, measure)) is not None:
            seeds = len(experiment.seeds_of(arm, experiment.arms[arm].replaces))
            lines.append(f"{arm}: {seeds} seeds tell {_number(smallest)} apart in {experiment.measures[measure]}")
    return "\n".join(lines)


def wanting(experiment: Experiment, results: Results, arm: str, measure: str, seeds: Sequence[int]) -> str:
    """Why runs of an arm say nothing in a measure: some have not ended, or learned nothing; empty where they do.

    A measure with a bound of its own is held to that, others are held to all bounds.
    """
    runs = [results["runs"].get(f"{arm}-{seed}") for seed in seeds]
    if None in runs:
        return "not finished"
    bounds = experiment.trained_above
    has_learned = experiment.arms[arm].may_learn_nothing or all(
        value > bound
        for name, bound in ({measure: bounds[measure]} if measure in bounds else bounds).items()
        for value in values(experiment, results, arm, name).values()
    )
    return "" if has_learned and not any(run["failed"] for run in runs) else "not trained"


def verdicts(experiment: Experiment, results: Results) -> Verdicts:
    """What became of every claim that has results.

    That an arm is better, or worse, is one hypothesis; that it is the same is two, for it can be refuted too. Arms that
    have learned nothing say nothing, and count for no hypothesis; nor do those of which runs are missing.
    """
    found, of_claims, tests = Verdicts(), dict[Claim, Difference](), list[tuple[float, Claim, bool]]()
    for arm, measure in claims(experiment):
        if (apart := compared(experiment, results, arm, measure)) is None:
            continue
        both = (arm, experiment.arms[arm].replaces)
        whys = [wanting(experiment, results, one, measure, experiment.seeds_of(*both)) for one in both]
        if why := next((one for one in ("not trained", "not finished") if one in whys), ""):
            found.words[arm, measure] = why
            continue
        of_claims[arm, measure] = apart
        tests.append((apart.p, (arm, measure), False))
        if experiment.arms[arm].paper[measure] == "same":
            tests.append((apart.p_within(experiment.margins[measure]), (arm, measure), True))
    sure, level, goes_on = set[tuple[Claim, bool]](), LEVEL, True
    for place, (p, claim, is_same) in enumerate(sorted(tests)):
        if goes_on:
            level = LEVEL / (len(tests) - place)
            goes_on = p <= level
        if goes_on:
            sure.add((claim, is_same))
        found.levels[claim] = min(level, found.levels.get(claim, LEVEL))
    for claim, apart in of_claims.items():
        paper, margin = experiment.arms[claim[0]].paper[claim[1]], experiment.margins.get(claim[1], 0.0)
        if (claim, True) in sure:
            found.words[claim] = f"as in the paper: the same within {_number(margin)}"
        elif (claim, False) in sure:
            agrees = (apart.mean > 0) == (paper == "higher") and paper != "same"
            found.words[claim] = "as in the paper" if agrees else "**against the paper**"
        else:
            found.words[claim] = "not told apart"
    return found


def claims(experiment: Experiment) -> list[Claim]:
    """Those of all sections, each once."""
    of_sections = (
        (arm, measure)
        for section in experiment.sections
        for arm in section.arms
        for measure in section.measures
        if measure in experiment.arms[arm].paper and experiment.arms[arm].replaces
    )
    return list(dict.fromkeys(of_sections))


def markdown(name: str, experiment: Experiment, results: Results) -> str:
    """The page."""
    counting = counted(experiment, results)
    of = verdicts(experiment, counting)
    parts = [
        f"# {experiment.title}",
        experiment.about.strip(),
        _method(name, experiment, counting),
        "## In short",
        in_short(of.words.get(claim, "") for claim in claims(experiment)),
        *(_section(experiment, section, counting, of) for section in experiment.sections),
        _ends(counting),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _method(name: str, experiment: Experiment, results: Results) -> str:
    runs, planned = list(results["runs"].values()), len(list(plan.jobs(experiment)))
    said = f"{len(runs)} of {planned} runs have ended by version {NUMBERS_VERSION} of the code"
    if runs:
        cpu_s, wall_s = (sum(run["values"][name] for run in runs) for name in ("cpu_s", "wall_s"))
        commits = ", ".join(sorted({run["code"].partition(" of ")[2] for run in runs}))
        said += f" ({commits}), {cpu_s / 60:.0f} minutes of CPU on {results['machine']}"
        said += f"; a run had {100 * cpu_s / wall_s:.0f} % of a core"
    return (
        f"{said}. Seeds are {', '.join(map(str, experiment.seeds))}, or as many as stand beside a difference; [how to "
        f"read the tables](claims.md#how-to-read-the-tables). `make experiment NAME={name}` trains what is missing, by "
        f"`experiments/{name}.toml`."
    )


def in_short(words: Iterable[str]) -> str:
    """How many claims have each verdict; those that have none are empty."""
    said = Counter(one.partition(":")[0] or "not tried" for one in words)
    return f"Of {said.total()} claims: {', '.join(f'{count} {words}' for words, count in said.most_common())}."


def _section(experiment: Experiment, section: Section, results: Results, of: Verdicts) -> str:
    if section.is_one_table:
        tables = [_means(experiment, section, results)]
    else:
        tables = [_table(experiment, section, results, measure, of) for measure in section.measures]
    return "\n\n".join([f"## {section.title}", section.about.strip(), *tables])


def _means(experiment: Experiment, section: Section, results: Results) -> str:
    """A table with a column a measure."""
    rows = [
        ["", *(experiment.measures[measure] for measure in section.measures)],
        ["---"] + ["---:"] * len(section.measures),
    ]
    for name in section.arms:
        of_arm = [values(experiment, results, name, measure).values() for measure in section.measures]
        cells = [_number(fmean(found)) if found else "" for found in of_arm]
        about = experiment.arms[name].about
        rows.append([about if any(of_arm) else f"{about}: {lacking(experiment.arms[name], name, results)}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _table(experiment: Experiment, section: Section, results: Results, measure: str, of: Verdicts) -> str:
    rows = [
        f"| {experiment.measures[measure]} | Mean (least to most) | Difference | Detectable |",
        "|---|---:|---|---:|",
    ]
    rows += [_row(experiment, name, results, measure, of) for name in section.arms]
    return "\n".join(rows)


def _row(experiment: Experiment, name: str, results: Results, measure: str, of: Verdicts) -> str:
    arm, found = experiment.arms[name], list(values(experiment, results, name, measure).values())
    if not found:
        return f"| {arm.about} | | {lacking(arm, name, results)} | |"
    against, smallest = "", detectable(experiment, results, name, measure)
    if apart := compared(experiment, results, name, measure):
        against = f"{interval(apart, len(experiment.seeds), of.levels.get((name, measure), LEVEL))} to "
        against += experiment.arms[arm.replaces].about
        against += f": {of.words[name, measure]}" if (name, measure) in of.words else ""
    spread = f"{_number(min(found))} to {_number(max(found))}"
    apart_from = "" if smallest is None else _number(smallest)
    return f"| {arm.about} | {_number(fmean(found))} ({spread}) | {against} | {apart_from} |"


def lacking(arm: Arm, name: str, results: Results) -> str:
    """Why an arm has no values."""
    return arm.untried or results["absent"].get(name, "no run has ended")


def _ends(results: Results) -> str:
    """Runs that did not come to their end, with the reason."""
    failed = [f"- {name}: {run['failed']}" for name, run in sorted(results["runs"].items()) if run["failed"]]
    return "\n".join(["## Runs that ended early", "", *failed]) if failed else ""


def interval(apart: Difference, seeds: int, level: float) -> str:
    """A difference with half of its interval, and of how many seeds it is where those are not as many as usual."""
    mean = _number(apart.mean, sign="+")
    half = f" ± {_number(apart.half(level))}" if apart.pairs > 1 else " without an interval"
    of = "" if apart.pairs == seeds else f" ({apart.pairs} seed{'s' * (apart.pairs > 1)})"
    return f"{mean}{half}{of}"


def _number(value: float, *, sign: str = "") -> str:
    size = abs(value)
    digits = ",.0f" if size >= 1000 else ".1f" if size >= 10 else ".2f" if size >= 0.1 else ".3g"
    return f"{round(value, 4):{sign}{digits}}"
