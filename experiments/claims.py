"""The page of all claims: what papers find, and what was found here, from the results of all experiments. Pure."""

from collections.abc import Mapping

from experiments import page
from experiments.page import LEVEL, Results
from experiments.plan import Experiment

WAYS = {"higher": "higher", "lower": "lower", "same": "the same"}
TITLE = "# What the papers claim, and what was found"
ABOUT = (
    "A claim is an arm of an experiment beside the arm that it replaces, in a measure of which a paper says that it is "
    "higher, lower or the same. Models are small, and train for minutes on a CPU: where a result differs from a "
    "paper's, size is the first explanation. Each page says what was trained, and how a verdict comes about."
)


def markdown(pages: Mapping[str, tuple[Experiment, Results]]) -> str:
    """The page, of experiments and their results by name."""
    parts, words = list[str](), list[str]()
    for name, (experiment, results) in pages.items():
        fresh = page.counted(experiment, results)
        of = page.verdicts(experiment, fresh)
        claims = page.claims(experiment)
        rows = [_row(experiment, fresh, of, *claim) for claim in claims]
        words += [of.words.get(claim, "") for claim in claims]
        table = ["| | Measure | The paper | Found | |", "|---|---|---|---|---|", *rows]
        parts.append(f"## [{experiment.title}]({name}.md)\n\n" + "\n".join(table))
    return "\n\n".join([TITLE, ABOUT, page.in_short(words), *parts]) + "\n"


def _row(experiment: Experiment, results: Results, of: page.Verdicts, name: str, measure: str) -> str:
    """A claim: what was compared, in what, what the paper says, the difference found, and the verdict or a reason."""
    arm, claim = experiment.arms[name], (name, measure)
    said = f"| {arm.about}; beside: {page.short(experiment.arms[arm.replaces])} | {experiment.measures[measure]} "
    said += f"| {WAYS[arm.paper[measure]]} "
    if (apart := page.compared(experiment, results, name, measure)) is None:
        return f"{said}| | {page.lacking(arm, name, results)} |"
    found = page.interval(apart, len(experiment.seeds), of.levels.get(claim, LEVEL))
    return f"{said}| {found} | {of.words[claim]} |"
