"""The funnel: what each step left; and every reason with the rules that hold at the same time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import DROPPED_IMAGES, FAILED_ROWS, FUNNEL, AuditTable
from altalign.data.reasons import KEPT, Stage, stages_of
from altalign.data.schema import COUNTS
from altalign.errors import UnreadableError
from altalign.rules import reason_words

SOURCES_AT_MOST = 30
OTHERS = "(other sources)"

Rows = Mapping[tuple[str, str, str], int]  # by stage, source and reason


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


@dataclass(frozen=True)
class Reason:
    """Rows that a rule dropped."""

    name: str  # the reason
    about: str  # the rule in a sentence, with its setting and value between backticks
    rows: int  # how many rows it dropped: it is the first rule that holds for them
    # how many distinct images these are; None for rules that drop pairs, or if the run did not count them
    images: int | None
    holds: int | None  # how many rows it holds for, first or not; None if the run did not count that
    only: int | None  # how many rows no other rule of the stage holds for; None likewise


@dataclass(frozen=True)
class StageReasons:
    """The reasons of a stage that occurred, in the order of its rules."""

    stage: str  # its name
    received: int  # rows that came in
    kept: int  # rows that it kept
    reasons: list[Reason]  # those that dropped a row, or hold for one that another rule dropped
    silent: list[str]  # names of the other reasons
    # how many rows two rules both hold for, by their numbers in `reasons`; the diagonal counts one rule. Empty if the
    # run did not count it
    overlap: list[list[int]] = field(default_factory=list)

    @property
    def has_overlap(self) -> bool:
        """Whether two rules hold for the same row."""
        return any(count for own, row in enumerate(self.overlap) for number, count in enumerate(row) if number != own)


def counted(run: RunFolder) -> Rows:
    """The rows of counts.parquet. Raises UnreadableError: the file is missing, though every finished run has one."""
    found = files.rows(run, AuditTable("counts.parquet", COUNTS))
    if found is None:
        raise UnreadableError(f"{run.path('counts.parquet')}: it is not there")
    return {(row["stage"], row["source"], row["reason"]): row["rows"] for row in found}


# Funnel --------------------------------------------------------------------------------------------------------------

_ABOUT = {
    Stage.EXTRACT: "with a caption, and an image or its address",
    Stage.JUDGE: "that pass the text rules, once each",
    Stage.FETCH: "whose image was found",
    Stage.IMAGE: "whose image passes the image rules",
    Stage.DECONTAMINATE: "whose image is no near-duplicate",
    Stage.SELECT: "that were selected",
}
_NOT_SEARCHED = "off: no search for near-duplicates"


def steps(run: RunFolder, counts: Rows) -> list[Step]:
    """The steps from the pool to the shards."""
    summary = files.facts(run, "summary.json")
    if missing := [name for name in ("pairs", "images", "bytes") if name not in summary]:
        raise UnreadableError(f"{run.path('summary.json')}: it does not say {missing[0]}")
    amounts = {(row["step"], row["source"]): (row["images"], row["bytes"]) for row in files.rows(run, FUNNEL) or []}
    amounts["shards", None] = summary["images"], summary["bytes"]
    names = _named_sources(counts)

    def step(name: str, about: str, rows: int, of_sources: Mapping[str, int]) -> Step:
        by_source = {source: Amount(n, *amounts.get((name, source), (None, None))) for source, n in of_sources.items()}
        return Step(name, about, rows, *amounts.get((name, None), (None, None)), by_source)

    found = [step("pool", "image elements, rows and broken records found", *_sum(counts, names, Stage.EXTRACT, None))]
    is_searched = bool(run.config.decontaminate.test_sets) or run.config.dedup.within_pool != "off"
    for stage in stages_of(of for of, _, _ in counts):
        about = _ABOUT[stage] if is_searched or stage is not Stage.DECONTAMINATE else _NOT_SEARCHED
        found.append(step(stage.value, about, *_sum(counts, names, stage, KEPT)))
    kept = {source: amount.rows for source, amount in found[-1].by_source.items()}
    return [*found, step("shards", "samples written", summary["pairs"], kept)]


def _named_sources(counts: Rows) -> list[str]:
    """The `SOURCES_AT_MOST` sources with the most rows."""
    rows: Counter[str] = Counter()
    for (stage, source, _), count in counts.items():
        rows[source] += count if stage == Stage.EXTRACT else 0
    return [name for name, _ in sorted(rows.items(), key=lambda entry: (-entry[1], entry[0]))[:SOURCES_AT_MOST]]


def _sum(counts: Rows, names: list[str], of: Stage, of_reason: str | None) -> tuple[int, dict[str, int]]:
    """Adds up the rows of a stage with one reason (None: any), in all and by source."""
    rows = dict.fromkeys(names, 0)
    for (stage, source, reason), count in counts.items():
        if stage == of and of_reason in (None, reason):
            name = source if source in rows else OTHERS
            rows[name] = rows.get(name, 0) + count
    return sum(rows.values()), rows


# Reasons -------------------------------------------------------------------------------------------------------------


def of_stages(run: RunFolder, counts: Rows) -> list[StageReasons]:
    """The reasons of every stage."""
    combinations, images = _combinations(run), dropped_images(run)
    stages = stages_of(of for of, _, _ in counts)
    found = [None if combinations is None else combinations.get(stage.value, {}) for stage in stages]
    return [_of_stage(run, stage, counts, images, each) for stage, each in zip(stages, found, strict=True)]


def dropped_images(run: RunFolder) -> dict[tuple[str, str], int]:
    """Distinct images that were dropped, by stage and reason; empty if the run did not count them."""
    return {(row["stage"], row["reason"]): row["images"] for row in files.rows(run, DROPPED_IMAGES) or []}


def _combinations(run: RunFolder) -> dict[str, Counter[tuple[str, ...]]] | None:
    """Rows by stage and by the set of rules that hold; None if the run did not count them."""
    found = files.rows(run, FAILED_ROWS)
    if found is None:
        return None
    rows: dict[str, Counter[tuple[str, ...]]] = {}
    for row in found:
        rows.setdefault(row["stage"], Counter())[tuple(row["failed"])] += row["rows"]
    return rows


def _of_stage(
    run: RunFolder,
    stage: Stage,
    counts: Rows,
    images: Mapping[tuple[str, str], int],
    combinations: Mapping[tuple[str, ...], int] | None,
) -> StageReasons:
    rows: Counter[str] = Counter()
    for (of, _, reason), count in counts.items():
        rows[reason] += count if of == stage else 0
    holding: Counter[tuple[str, str]] = Counter()
    only: Counter[str] = Counter()
    for failed, count in (combinations or {}).items():
        for one in failed:
            holding.update({(one, other): count for other in failed})
        if len(failed) == 1:
            only[failed[0]] += count
    known = [*reason_words.of_stage(stage, run.config), *reason_words.of_select(sorted({*rows, *only}))]
    names = [reason for reason in known if rows[reason] or holding[reason, reason]]
    is_known = combinations is not None

    def dropped_for(name: str) -> Reason:
        both = (holding[name, name], only[name]) if is_known else (None, None)
        about = run.conditions.get(name) or reason_words.sentence(run.config, name)
        return Reason(name, about, rows[name], images.get((stage.value, name)), *both)

    overlap = [[holding[one, other] for other in names] for one in names] if is_known else []
    silent = [reason for reason in known if reason not in names]
    told = [dropped_for(name) for name in names]
    return StageReasons(stage.value, sum(rows.values()), rows[KEPT], told, silent, overlap)
