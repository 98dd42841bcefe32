"""The funnel: what each step left; and every reason with the rules that hold at the same time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from altalign.audit.report import files
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
    """Rows, distinct images and bytes of a source."""

    rows: int
    images: int | None
    bytes: int | None


@dataclass(frozen=True)
class Step:
    """What is left after a stage, in all and by source. An image of several sources counts once in all."""

    name: str
    about: str
    rows: int
    images: int | None
    bytes: int | None
    by_source: dict[str, Amount]


def steps(run: RunFolder, counts: Rows) -> list[Step]:
    """The steps from the pool to the shards; the `SOURCES_AT_MOST` sources with the most rows are named."""
    summary = files.facts(run, "summary.json")
    if missing := [name for name in ("pairs", "images", "bytes") if name not in summary]:
        raise UnreadableError(f"{run.path('summary.json')}: it does not say {missing[0]}")
    amounts = {(row["step"], row["source"]): (row["images"], row["bytes"]) for row in files.rows(run, FUNNEL) or []}
    amounts["shards", None] = summary["images"], summary["bytes"]
    in_pool = Counter[str]()
    for (stage, source, _), number in counts.items():
        in_pool[source] += number if stage == Stage.EXTRACT else 0
    names = sorted(in_pool, key=lambda name: (-in_pool[name], name))[:SOURCES_AT_MOST]

    def step(name: str, about: str, rows: int, by_source: Mapping[str, int]) -> Step:
        amounts_of = {source: Amount(n, *amounts.get((name, source), (None, None))) for source, n in by_source.items()}
        return Step(name, about, rows, *amounts.get((name, None), (None, None)), amounts_of)

    steps = [step("pool", "image elements, rows and broken records found", *_sum(counts, names, Stage.EXTRACT, None))]
    is_searched = bool(run.config.decontaminate.test_sets) or run.config.dedup.within_pool != "off"
    for stage in stages_of(name for name, _, _ in counts):
        is_off = stage is Stage.DECONTAMINATE and not is_searched
        about = "off: no search for near-duplicates" if is_off else _ABOUT[stage]
        steps.append(step(stage.value, about, *_sum(counts, names, stage, KEPT)))
    kept = {source: amount.rows for source, amount in steps[-1].by_source.items()}
    return [*steps, step("shards", "samples written", summary["pairs"], kept)]


def _sum(counts: Rows, names: list[str], stage: Stage, reason: str | None) -> tuple[int, dict[str, int]]:
    """Adds up the rows of a stage with one reason (None: any), in all and by source."""
    rows = dict.fromkeys(names, 0)
    for (of_stage, source, of_reason), number in counts.items():
        if of_stage == stage and reason in (None, of_reason):
            name = source if source in rows else OTHERS
            rows[name] = rows.get(name, 0) + number
    return sum(rows.values()), rows


# Reasons -------------------------------------------------------------------------------------------------------------


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
    images, failed_rows = dropped_images(run), files.rows(run, FAILED_ROWS)
    reasons = []
    for stage in stages_of(name for name, _, _ in counts):
        combinations = None if failed_rows is None else Counter[tuple[str, ...]]()
        for row in failed_rows or ():
            if row["stage"] == stage.value and combinations is not None:
                combinations[tuple(row["failed"])] += row["rows"]
        reasons.append(_of_stage(run, stage, counts, images, combinations))
    return reasons


def dropped_images(run: RunFolder) -> dict[tuple[str, str], int]:
    """Distinct images that were dropped, by stage and reason; empty if the run did not count them."""
    return {(row["stage"], row["reason"]): row["images"] for row in files.rows(run, DROPPED_IMAGES) or []}


def _of_stage(
    run: RunFolder,
    stage: Stage,
    counts: Rows,
    images: Mapping[tuple[str, str], int],
    combinations: Mapping[tuple[str, ...], int] | None,
) -> StageReasons:
    """`combinations` are rows by the set of rules that hold; None if the run did not count them."""
    rows, holding, only = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    for (name, _, reason), number in counts.items():
        rows[reason] += number if name == stage else 0
    for failed, number in (combinations or {}).items():
        for one in failed:
            holding.update({(one, other): number for other in failed})
        if len(failed) == 1:
            only[failed[0]] += number
    known = [*own.reasons(stage, run.config), *reason_words.of_select(sorted({*rows, *only}))]
    names = [reason for reason in known if rows[reason] or holding[reason, reason]]
    is_known = combinations is not None

    def dropped_for(name: str) -> Reason:
        both = (holding[name, name], only[name]) if is_known else (None, None)
        about = run.conditions.get(name) or reason_words.sentence(run.config, name)
        return Reason(name, about, rows[name], images.get((stage.value, name)), *both)

    overlap = [[holding[one, other] for other in names] for one in names] if is_known else []
    silent = [reason for reason in known if reason not in names]
    reasons = [dropped_for(name) for name in names]
    return StageReasons(stage.value, sum(rows.values()), rows[KEPT], reasons, silent, overlap)
