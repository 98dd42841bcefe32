"""The funnel: what each step left; and every reason with the rules that hold at the same time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import DROPPED_IMAGES, FAILED_ROWS, FUNNEL
from altalign.data.reasons import KEPT, Stage, stages_of
from altalign.errors import UnreadableError
from altalign.rules import own, reason_words

SOURCES_AT_MOST = 30
OTHERS = "(other sources)"

Rows = Mapping[tuple[str, str, str], int]  # by stage, source and reason

_ABOUT = {
    Stage.EXTRACT: "with a caption, and an image or its address",
    Stage.JUDGE: "that pass the text rules, once each",
    Stage.FETCH: "whose image was found",
    Stage.IMAGE: "whose image passes the image rules",
    Stage.DECONTAMINATE: "whose image is no near-duplicate",
    Stage.SELECT: "that were selected",
}


@dataclass(frozen=True)
class Amount:
    """Rows, distinct images and bytes; None where they were not counted."""

    rows: int
    images: int | None
    bytes: int | None


@dataclass(frozen=True)
class Step(Amount):
    """What is left after a stage, in all and by source. An image of several sources counts once in all."""

    name: str
    about: str
    by_source: dict[str, Amount]


def steps(run: RunFolder, counts: Rows) -> list[Step]:
    """The steps from the pool to the shards; the `SOURCES_AT_MOST` sources with the most rows are named."""
    summary = run.json("summary.json")
    if missing := [name for name in ("pairs", "images", "bytes") if name not in summary]:
        raise UnreadableError(f"{run.path('summary.json')}: it does not say {missing[0]}")
    amounts = {
        (row["step"], row["source"]): (row["images"], row["bytes"]) for row in run_rows.listed(run, FUNNEL) or []
    }
    amounts["shards", None] = summary["images"], summary["bytes"]
    in_pool, rows_after = Counter[str](), dict[str, Counter[str]]()  # by source
    for (stage, source, reason), number in counts.items():
        in_pool[source] += number if stage == Stage.EXTRACT else 0
        rows_after.setdefault(stage, Counter())[source] += number if reason == KEPT else 0
    names = sorted(in_pool, key=lambda name: (-in_pool[name], name))[:SOURCES_AT_MOST]
    parts = [("pool", "image elements, rows and broken records found", in_pool)]
    about = dict(_ABOUT)
    if not run.config.decontaminate.test_sets and run.config.dedup.within_pool == "off":
        about[Stage.DECONTAMINATE] = "off: no search for near-duplicates"
    parts += [(stage.value, about[stage], rows_after.get(stage, Counter())) for stage in stages_of(rows_after)]
    parts.append(("shards", "samples written", parts[-1][2]))
    steps = []
    for name, words, rows in parts:
        by_source = {source: rows[source] for source in names}
        if len(in_pool) > len(names):  # at every step, whether any is left of them
            by_source[OTHERS] = rows.total() - sum(by_source.values())
        amounts_of = {source: Amount(n, *amounts.get((name, source), (None, None))) for source, n in by_source.items()}
        number = summary["pairs"] if name == "shards" else rows.total()
        steps.append(Step(number, *amounts.get((name, None), (None, None)), name, words, amounts_of))
    return steps


@dataclass(frozen=True)
class Reason:
    """Rows that a rule dropped."""

    name: str
    about: str  # the rule in a sentence, with its setting and value between backticks
    rows: int  # how many rows it dropped: it is the first rule that holds for them
    images: int | None  # how many distinct images these are; None for rules that drop pairs, or if not counted
    holds: int | None  # how many rows it holds for, first or not; None if the run did not count that
    only: int | None  # how many rows no other rule of the stage holds for; None likewise


@dataclass(frozen=True)
class StageReasons:
    """The reasons of a stage that occurred, in the order of its rules."""

    stage: str
    received: int
    kept: int
    reasons: list[Reason]  # those that dropped a row, or hold for one that another rule dropped
    silent: list[str]  # names of the other reasons
    # how many rows two rules both hold for, by their numbers in `reasons`; the diagonal counts one rule. Empty if the
    # run did not count it
    overlap: list[list[int]] = field(default_factory=list)

    @property
    def has_overlap(self) -> bool:
        """Whether two rules hold for the same row."""
        return any(count for own, row in enumerate(self.overlap) for number, count in enumerate(row) if number != own)


def of_stages(run: RunFolder, counts: Rows) -> list[StageReasons]:
    """The reasons of every stage."""
    failed_rows = run_rows.listed(run, FAILED_ROWS)
    images = {(row["stage"], row["reason"]): row["images"] for row in run_rows.listed(run, DROPPED_IMAGES) or []}
    by_reason, all_of_them = run_rows.by_reason(counts), list[StageReasons]()
    for stage in stages_of(name for name, _, _ in counts):
        rows = Counter({reason: number for (name, reason), number in by_reason.items() if name == stage})
        holding, only = Counter[tuple[str, str]](), Counter[str]()
        for failed, number in ((row["failed"], row["rows"]) for row in failed_rows or () if row["stage"] == stage):
            holding.update(dict.fromkeys(product(failed, failed), number))
            only.update({one: number for one in failed if len(failed) == 1})
        known = [*own.reasons(stage, run.config), *reason_words.of_select(sorted({*rows, *only}))]
        names = [reason for reason in known if rows[reason] or holding[reason, reason]]
        reasons, conditions = [], run.conditions if stage is Stage.SELECT else {}
        for name in names:
            about = conditions.get(name) or reason_words.sentence(run.config, name)
            both = (None, None) if failed_rows is None else (holding[name, name], only[name])
            reasons.append(Reason(name, about, rows[name], images.get((stage.value, name)), *both))
        overlap = [[holding[one, other] for other in names] for one in names] if failed_rows is not None else []
        silent = [reason for reason in known if reason not in names]
        all_of_them.append(StageReasons(stage.value, rows.total(), rows[KEPT], reasons, silent, overlap))
    return all_of_them
