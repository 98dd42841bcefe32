"""All numbers of a report, read from the files of a run, and the page that shows them: one file that loads nothing."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from altalign import __version__, storage
from altalign.audit import rows as run_rows
from altalign.audit.checks import findings
from altalign.audit.checks.findings import Check
from altalign.audit.report import FOLDER, captions, distributions, fidelity, funnel, galleries, scores
from altalign.audit.report.distributions import Distribution
from altalign.audit.report.funnel import StageReasons, Step
from altalign.audit.report.galleries import Gallery, Near
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import BALANCED
from altalign.data.counts import Counts
from altalign.data.reasons import KEPT
from altalign.filters.personal import KINDS
from altalign.pages import frame
from altalign.pipelines.card import rate, shown_rates
from altalign.rules import reason_words

BALANCED_AT_MOST = 40  # concepts of a selection that balances, those in most captions first
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
    samples: list[Gallery] | None
    near: dict[str, list[Near]] | None
    frequent: dict[str, list[dict[str, Any]]]
    personal: Mapping[str, Any] | None  # of summary.json
    scores: scores.Scores | None
    slices: list[captions.Slice]
    balanced: list[dict[str, Any]]
    checks: Sequence[Check]
    fidelity: fidelity.Fidelity
    run: Mapping[str, Any]  # run.json, `reported_by` and `seconds`
    settings: str
    took_most: str

    def counting(self, measure: str) -> list[Step]:
        """The steps of the funnel that count a measure ("rows", "images" or "bytes") by source."""

        def counts(step: Step) -> bool:
            return any(getattr(amount, measure) is not None for amount in step.by_source.values())

        return list(filter(counts, self.funnel))

    def to_json(self) -> dict[str, object]:
        """The content of `audit/report.json`: the numbers of the page that no other file has, without times."""
        return {
            "funnel": [asdict(step) for step in self.funnel],
            "reasons": [asdict(stage) for stage in self.stages],
            "distributions": [asdict(each) for each in self.distributions],
            "thresholds": [asdict(each) for each in self.thresholds],
            "galleries": {
                f"{each.stage}/{each.reason}": {"rows": each.rows, "shown": len(each.cards)}
                for each in self.samples or []
            },
            "fidelity": asdict(self.fidelity),
            **({"scores": asdict(self.scores)} if self.scores else {}),
            **({"balanced": self.balanced} if self.balanced else {}),
            **({"slices": [asdict(each) for each in self.slices]} if self.slices else {}),
        }


def generator(run: RunFolder) -> str:
    """Names the version and the manifest that a report is made from: the same two give the same report."""
    digest = hashlib.sha256(storage.read_bytes(run.path("manifest.json"))).hexdigest()
    return f"altalign {__version__}, of manifest {digest}"


def gather(run: RunFolder, checks: Sequence[Check], words: Mapping[str, str] | None = None) -> Numbers:
    """Reads the numbers of a finished run; `words` are lists by name, for the share of captions kept of each.

    Raises UnreadableError: a file of the run is damaged; UsageError: a list cannot be read.
    """
    counts = run_rows.counts(run)
    steps, stages, drawn = funnel.steps(run, counts), funnel.of_stages(run, counts), distributions.of_run(run)
    images = {(stage.stage, reason.name): reason.images for stage in stages for reason in stage.reasons}
    picture = galleries.within(galleries.PICTURES_AT_MOST)
    seconds = sum(each["seconds"] for each in run.facts["stages"].values())
    return Numbers(
        folder=run.folder,
        generator=generator(run),
        funnel=steps,
        stages=stages,
        distributions=[each for each in drawn if not each.is_curve],
        thresholds=[each for each in drawn if each.is_curve],
        near=galleries.near(run, picture),
        samples=galleries.samples(run, run_rows.by_reason(counts), images | {(KEPT, KEPT): steps[-1].images}, picture),
        frequent=captions.frequent(run),
        personal=run.json("summary.json").get("personal_data"),
        scores=scores.of_run(run),
        slices=captions.slices(run, words or {}),
        balanced=(run_rows.listed(run, BALANCED) or [])[:BALANCED_AT_MOST],
        checks=checks,
        fidelity=fidelity.of_run(run, counts),
        run={"machine": "", **run.facts, "reported_by": __version__, "seconds": seconds},
        settings=storage.read_bytes(run.path("config.toml")).decode("utf-8", "replace"),
        took_most=reason_words.largest_drop(Counts(counts), run.config),
    )


def html(numbers: Numbers) -> bytes:
    """The whole page in UTF-8."""
    drawn = [*numbers.distributions, *numbers.thresholds, *(numbers.scores.distributions if numbers.scores else ())]
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
    }
    return frame.rendered(
        FOLDER,
        "report.html",
        styles=_STYLES,
        scripts=_SCRIPTS,
        numbers=numbers,
        quantiles=scores.QUANTILES,
        kinds_of_personal=KINDS,
        languages_of_personal=shown_rates(numbers.personal["rates"]) if numbers.personal else [],
        rate=rate,
        sources=sorted({card.source for each in numbers.samples or [] for card in each.cards}),
        data=frame.inline({"charts": charts}),
        failed=findings.failed(numbers.checks),
        not_asked=findings.not_asked(numbers.checks),
        summary_of_checks=findings.summed_up(numbers.checks),
    )
