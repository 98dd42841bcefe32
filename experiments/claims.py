"""The page of all claims: what papers find, and what was found here, from the results of all experiments."""

from collections.abc import Mapping
from pathlib import Path

from experiments import page
from experiments.page import LEVEL, Results
from experiments.plan import Experiment

TEMPLATE = Path(__file__).with_suffix(".md")
WAYS = {"higher": "higher", "lower": "lower", "same": "the same"}


def markdown(pages: Mapping[str, tuple[Experiment, Results]]) -> str:
    """The page, of experiments and their results by name."""
    tables, words = list[str](), list[str]()
    for name, (experiment, results) in pages.items():
        counting, claims = page.counted(experiment, results), page.claims(experiment)
        of = page.verdicts(experiment, counting)
        rows = ["| | Measure | The paper | Found | |", "|---|---|---|---|---|"]
        rows += [_row(experiment, counting, of, *claim) for claim in claims]
        words += [of.words.get(claim, "") for claim in claims]
        tables.append(f"## [{experiment.title}]({name}.md)\n\n" + "\n".join(rows))
    return TEMPLATE.read_text(encoding="utf-8").format(summary=page.in_short(words), tables="\n\n".join(tables))


def _row(experiment: Experiment, results: Results, of: page.Verdicts, name: str, measure: str) -> str:
    """A claim: what was compared, in what, what the paper says, the difference found, and the verdict or a reason."""
    arm = experiment.arms[name]
    said = f"| {arm.about}; beside: {experiment.arms[arm.replaces].about} | {experiment.measures[measure]} "
    said += f"| {WAYS[arm.paper[measure]]} "
    if (apart := page.compared(experiment, results, name, measure)) is None:
        return f"{said}| | {page.lacking(arm, name, results)} |"
    found = page.interval(apart, len(experiment.seeds), of.levels.get((name, measure), LEVEL))
    return f"{said}| {found} | {of.words[name, measure]} |"
