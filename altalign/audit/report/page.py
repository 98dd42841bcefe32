"""All numbers of a report, read from the files of a run, and the page that shows them.

The numbers are written to `audit/report.json`, too. The page is one HTML file that needs no other file and may load
none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from altalign import __version__, storage
from altalign.audit import rows as run_rows
from altalign.audit.checks import findings
from altalign.audit.checks.findings import Check
from altalign.audit.report import (
    FOLDER,
    captions,
    distributions,
    fidelity,
    files,
    funnel,
    galleries,
    scores,
    thresholds,
)
from altalign.audit.report.distributions import Distribution
from altalign.audit.report.funnel import StageReasons, Step
from altalign.audit.report.galleries import Galleries
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import BALANCED
from altalign.data.counts import Counts
from altalign.data.reasons import KEPT, Stage
from altalign.pages import frame
from altalign.rules import reason_words

TEXT_AT_MOST = 5_000_000  # bytes of the page without pictures
BALANCED_AT_MOST = 40  # concepts of a selection that balances, those in most captions first
_CARDS_AT_MOST = (24, 12, 6, 3, 1, 0)  # of each gallery, tried until the page fits; kept pairs have twice as many
_PICTURE = re.compile(rb'"data:image/[^"]*"')
_CHARTS = "uPlot-1.6.32"
_SCRIPTS = (f"{_CHARTS}.iife.min.js", "charts.js", "find.js", "cards.js", "page.js")
_STYLES = (f"{_CHARTS}.min.css", "page.css")


@dataclass(frozen=True)
class Numbers:
    """Everything that a report shows."""

    folder: str
    generator: str
    funnel: list[Step]
    stages: list[StageReasons]
    distributions: list[Distribution]
    thresholds: list[Distribution]
    galleries: Galleries
    frequent: captions.Frequent
    scores: scores.Scores | None
    slices: list[captions.Slice]
    balanced: list[dict[str, Any]]
    checks: Sequence[Check]
    fidelity: fidelity.Fidelity
    run: Mapping[str, Any]
    settings: str
    took_most: str

    def counting(self, measure: str) -> list[Step]:
        """The steps of the funnel that count a measure ("rows", "images" or "bytes") by source."""
        return [
            step
            for step in self.funnel
            if any(getattr(amount, measure) is not None for amount in step.by_source.values())
        ]

    def to_json(self) -> dict[str, object]:
        """The content of `audit/report.json`: the numbers of the page that no other file has, without times."""
        return {
            "funnel": [asdict(step) for step in self.funnel],
            "reasons": [asdict(stage) for stage in self.stages],
            "distributions": [asdict(each) for each in self.distributions],
            "thresholds": [asdict(each) for each in self.thresholds],
            "galleries": {
                f"{each.stage}/{each.reason}": {"rows": each.rows, "shown": len(each.cards)}
                for each in self.galleries.samples or []
            },
            "fidelity": asdict(self.fidelity),
            **({"scores": self.scores.to_json()} if self.scores else {}),
            **({"balanced": self.balanced} if self.balanced else {}),
            **({"slices": [asdict(each) for each in self.slices]} if self.slices else {}),
        }


def gather(run: RunFolder, checks: Sequence[Check], words: Mapping[str, str] | None = None) -> Numbers:
    """Reads the numbers of a finished run; `words` are lists by name, for the share of captions kept of each.

    Raises UnreadableError: a file of the run is damaged; UsageError: a list cannot be read.
    """
    counts = run_rows.counts(run)
    rows, steps = run_rows.by_reason(counts), funnel.steps(run, counts)
    of_samples = galleries.of_run(run, rows, {**funnel.dropped_images(run), (KEPT, KEPT): steps[-1].images})
    return Numbers(
        folder=run.folder,
        generator=files.generator(run),
        funnel=steps,
        stages=funnel.of_stages(run, counts),
        distributions=distributions.of_run(run),
        thresholds=thresholds.of_run(run),
        galleries=of_samples,
        frequent=captions.frequent(run),
        scores=scores.of_run(run, of_samples),
        slices=captions.slices(run, words or {}),
        balanced=(files.rows(run, BALANCED) or [])[:BALANCED_AT_MOST],
        checks=checks,
        fidelity=fidelity.of_run(run, counts),
        run=_facts(run, rows),
        settings=storage.read_bytes(run.path("config.toml")).decode("utf-8", "replace"),
        took_most=reason_words.largest_drop(Counts(counts), run.config),
    )


def _facts(run: RunFolder, rows: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """What differs from run to run: versions, engine, times of stages, and how many rows each took a second."""
    received = {stage.value: sum(number for (name, _), number in rows.items() if name == stage) for stage in Stage}
    received |= {"tables": received[Stage.JUDGE], "write": rows.get((Stage.DECONTAMINATE.value, KEPT), 0)}
    stages = []
    for name, facts in run.facts["stages"].items():
        through, seconds = received.get(name), facts["seconds"]
        speed = through / seconds if through and seconds else None
        stages.append({**facts, "name": name, "rows": through, "rows_per_s": speed})
    seconds = sum(each["seconds"] for each in stages)
    return {"machine": "", **run.facts, "reported_by": __version__, "stages": stages, "seconds": seconds}


# The page -------------------------------------------------------------------------------------------------------------


def html(numbers: Numbers) -> bytes:
    """The whole page in UTF-8, with fewer cards if it would be too large."""
    drawn = [*numbers.distributions, *numbers.thresholds]
    drawn += [*numbers.scores.distributions, *numbers.scores.thresholds] if numbers.scores else []
    charts = {
        each.key: {
            "labels": [part.label for part in each.bins],
            "kept": [part.kept for part in each.bins],
            "dropped": [part.dropped for part in each.bins],
            "names": [each.names.kept, each.names.dropped],
            "thresholds": [[threshold.label, threshold.at] for threshold in each.thresholds],
            "log": each.is_log,
            "curve": each.is_curve,
        }
        for each in drawn
        if each.bins
    }
    values = {
        "data": frame.inline({"charts": charts}),
        "failed": findings.failed(numbers.checks),
        "not_asked": findings.not_asked(numbers.checks),
        "summary_of_checks": findings.summed_up(numbers.checks),
    }
    page, near = b"", numbers.galleries.near
    for most in _CARDS_AT_MOST:
        samples = numbers.galleries.samples and [
            replace(each, cards=each.cards[: 2 * most if each.stage == KEPT else most])
            for each in numbers.galleries.samples
        ]
        fewer = replace(numbers, galleries=Galleries(samples, near))
        page = frame.rendered(FOLDER, "report.html", styles=_STYLES, scripts=_SCRIPTS, numbers=fewer, **values)
        if len(_PICTURE.sub(b"", page)) <= TEXT_AT_MOST:
            break
    return page
