"""All numbers of a report, read from the files of a run; they are written to `audit/report.json`, too."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from altalign import __version__, storage
from altalign.audit.checks import findings
from altalign.audit.checks.findings import Check
from altalign.audit.report import (
    distributions,
    fidelity,
    files,
    funnel_and_reasons,
    galleries,
    most_frequent,
    other_thresholds,
    scores,
    slices,
    top_words,
)
from altalign.audit.report.distributions import Distribution
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import BALANCED
from altalign.data.counts import Counts
from altalign.data.reasons import KEPT, Stage
from altalign.rules import reason_words

BALANCED_AT_MOST = 40  # concepts of a selection that balances, those in most captions first


@dataclass(frozen=True)
class Numbers:
    """Everything that a report shows."""

    folder: str
    generator: str
    funnel: list[funnel_and_reasons.Step]
    stages: list[funnel_and_reasons.StageReasons]
    distributions: list[Distribution]
    thresholds: list[Distribution]
    galleries: galleries.Galleries
    frequent: most_frequent.Frequent
    words: top_words.TopWords | None
    scores: scores.Scores | None
    slices: list[slices.Slice]
    balanced: list[dict[str, Any]]
    checks: Sequence[Check]
    fidelity: fidelity.Fidelity
    run: Mapping[str, Any]
    settings: str
    took_most: str

    @property
    def failed(self) -> list[Check]:
        """Checks that did not pass."""
        return findings.failed(self.checks)

    @property
    def not_asked(self) -> list[Check]:
        """Checks that could not be asked."""
        return findings.not_asked(self.checks)

    @property
    def said_of_checks(self) -> str:
        """How many checks failed or passed, in words."""
        return findings.summed_up(self.checks)

    def counting(self, measure: str) -> list[funnel_and_reasons.Step]:
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
            "words": asdict(self.words) if self.words else None,
            "fidelity": asdict(self.fidelity),
            **({"scores": self.scores.to_json()} if self.scores else {}),
            **({"balanced": self.balanced} if self.balanced else {}),
            **({"slices": [asdict(each) for each in self.slices]} if self.slices else {}),
        }


def gather(run: RunFolder, checks: Sequence[Check], words: Mapping[str, str] | None = None) -> Numbers:
    """Reads the numbers of a finished run; `words` are lists by name, for the share of captions kept of each.

    Raises UnreadableError: a file of the run is damaged; UsageError: a list cannot be read.
    """
    counts = funnel_and_reasons.counted(run)
    rows: Counter[tuple[str, str]] = Counter()
    for (stage, _, reason), count in counts.items():
        rows[stage, reason] += count
    funnel = funnel_and_reasons.steps(run, counts)
    images = {**funnel_and_reasons.dropped_images(run), (KEPT, KEPT): funnel[-1].images}
    of_samples = galleries.of_run(run, rows, images)
    return Numbers(
        folder=run.folder,
        generator=files.generator(run),
        funnel=funnel,
        stages=funnel_and_reasons.of_stages(run, counts),
        distributions=distributions.of_run(run),
        thresholds=other_thresholds.of_run(run),
        galleries=of_samples,
        frequent=most_frequent.of_run(run),
        words=top_words.of_run(run, rows),
        scores=scores.of_run(run, of_samples),
        slices=slices.of_run(run, words or {}),
        balanced=(files.rows(run, BALANCED) or [])[:BALANCED_AT_MOST],
        checks=checks,
        fidelity=fidelity.of_run(run, counts),
        run=_facts(run, rows),
        settings=storage.read_bytes(run.path("config.toml")).decode("utf-8", "replace"),
        took_most=reason_words.largest_drop(Counts(counts), run.config),
    )


def _facts(run: RunFolder, rows: "Counter[tuple[str, str]]") -> dict[str, Any]:
    """What differs from run to run: versions, engine, times of stages, and how many rows each took a second."""
    received = {stage.value: sum(count for (of, _), count in rows.items() if of == stage) for stage in Stage}
    received |= {"tables": received[Stage.JUDGE], "write": rows[Stage.DECONTAMINATE.value, KEPT]}
    stages = []
    for name, of_stage in run.facts["stages"].items():
        through, seconds = received.get(name), of_stage["seconds"]
        speed = through / seconds if through and seconds else None
        stages.append({**of_stage, "name": name, "rows": through, "rows_per_s": speed})
    seconds = sum(each["seconds"] for each in stages)
    return {"machine": "", **run.facts, "reported_by": __version__, "stages": stages, "seconds": seconds}
