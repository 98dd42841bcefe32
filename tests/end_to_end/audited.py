"""The joint counts that a run leaves for its audit, held against plain loops over the reference's rows; and what sums
over them say of other thresholds.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from altalign.reasons import KEPT, DropReason, Stage
from tests.end_to_end.oracle import assert_same, log2_in_8_bits
from tests.reference.curation import Curation, ImageFacts, Outcome, Settings, Tables

MOVABLE = {
    DropReason.TEXT_TOO_SHORT,
    DropReason.TEXT_TOO_LONG,
    DropReason.TEXT_ON_TOO_MANY_IMAGES,
    DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
}
OF_SIZE = {DropReason.IMAGE_TOO_SMALL, DropReason.IMAGE_TOO_ELONGATED}
SHORT_STOPS = [
    0,
    32,
    64,
    96,
    100,
    128,
    160,
    192,
    200,
    224,
    240,
    256,
    288,
    320,
    336,
    384,
    400,
    448,
    512,
    600,
    640,
    768,
    800,
    1024,
]
ASPECT_STOPS = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 5, 6, 8, 10]
ABOVE_ALL = 2**31 - 1


def read(run: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table of the audit."""
    return pq.read_table(run / "audit" / f"{name}.parquet").to_pylist()


def rarest_of(outcome: Outcome, facts: Tables) -> int:
    """The log2 of the smallest count of the caption's n-grams; 0 of one that is rare, 255 where there is no table or no
    n-gram.
    """
    if facts.vocabulary is None or not outcome.candidate.ngrams:
        return 255
    return min(
        log2_in_8_bits(facts.vocabulary[ngram]) if ngram in facts.vocabulary else 0
        for ngram in outcome.candidate.ngrams
    )


def assert_pairs(run: Path, facts: Tables, curation: Curation) -> None:
    """audit/pairs_joint.parquet, by a set of all pairs of image and caption to which only thresholds, or nothing,
    object.
    """

    def above(count: int | None) -> int:
        return 0 if count is None else count if count < 1024 else 1024 + log2_in_8_bits(count)

    measured: dict[tuple[str | None, str], tuple[int, ...]] = {}
    for outcome in (outcome for outcome in [*curation.dropped, *curation.kept] if outcome.stage is not Stage.EXTRACT):
        if outcome.stage is Stage.JUDGE and not {*outcome.failed} <= {*MOVABLE, DropReason.PAIR_REPEATED}:
            continue
        found = (
            min(outcome.words, 1_023),
            rarest_of(outcome, facts),
            above(outcome.images_per_text),
            above(outcome.texts_per_image),
        )
        if measured.setdefault((outcome.identity, outcome.caption), found) != found:
            raise AssertionError(
                f"two rows of one pair measure {found} and {measured[outcome.identity, outcome.caption]}"
            )
    expected = [(*values, pairs) for values, pairs in Counter(measured.values()).items()]
    rows = [tuple(row.values()) for row in read(run, "pairs_joint")]
    assert_same(rows, expected, "pairs_joint")
    if rows != sorted(rows):
        raise AssertionError("pairs_joint is not in the order of its columns")


def assert_failed(run: Path, curation: Curation) -> None:
    """audit/failed.parquet; and its sums are those of counts.parquet."""
    expected: Counter[tuple[Any, ...]] = Counter()
    for outcome in curation.dropped:
        expected[outcome.stage.value, outcome.candidate.source, tuple(reason.value for reason in outcome.failed)] += 1
    expected.update(
        {(stage, source, ()): rows for (stage, source, reason), rows in curation.counts.items() if reason == KEPT}
    )
    rows = read(run, "failed")
    found = [(row["stage"], row["source"], tuple(row["failed"]), row["rows"]) for row in rows]
    assert_same(found, [(*of, n) for of, n in expected.items() if n], "failed")
    assert_reconciled(run)


def assert_reconciled(run: Path) -> None:
    """The first rules that hold of audit/failed.parquet add up to counts.parquet; and both to
    audit/outcome_joint.parquet.
    """
    firsts, counts = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for row in read(run, "failed"):
        firsts[row["stage"], row["source"], row["failed"][0] if row["failed"] else KEPT] += row["rows"]
    for row in pq.read_table(run / "counts.parquet").to_pylist():
        counts[row["stage"], row["source"], row["reason"]] += row["rows"]
    if firsts != counts:
        raise AssertionError(f"failed.parquet has {firsts}, counts.parquet {counts}")
    outcomes = Counter[str]()
    for row in read(run, "outcome_joint"):
        outcomes[row["outcome"]] += row["pairs"]
    kept = {
        stage: sum(n for (of, _, reason), n in counts.items() if (of, reason) == (stage, KEPT))
        for stage in ("judge", "image", "decontaminate")
    }
    near = kept["image"] - kept["decontaminate"]
    if (outcomes.total(), outcomes[KEPT], outcomes["near_duplicate"]) != (kept["judge"], kept["decontaminate"], near):
        raise AssertionError(f"outcome_joint has {outcomes}, counts.parquet keeps {kept}")


def stops_of(facts: ImageFacts, settings: Settings) -> tuple[int | None, int | None]:
    """The stops of short side and ratio, by trying all of them."""
    if facts.width is None or facts.height is None:
        return None, None
    short, long = sorted((facts.width, facts.height))
    own = Fraction(str(settings.aspect_ratio_below))
    limits = {-(-100 * own.numerator // own.denominator): own}
    for stop in ASPECT_STOPS:
        limits.setdefault(int(100 * stop), Fraction(stop))
    above = max(stop for stop in [*SHORT_STOPS, settings.short_side_above_px] if short > stop)
    return above, min((percent for percent, limit in limits.items() if long < limit * short), default=ABOVE_ALL)


def assert_outcomes(
    run: Path, facts: Tables, curation: Curation, images: Mapping[str, ImageFacts], settings: Settings
) -> None:
    """audit/outcome_joint.parquet of a run without decontamination."""
    expected: Counter[tuple[Any, ...]] = Counter()
    for outcome in (
        outcome for outcome in [*curation.dropped, *curation.kept] if outcome.stage not in (Stage.EXTRACT, Stage.JUDGE)
    ):
        what = KEPT if not outcome.failed else "not_searched" if {*outcome.failed} <= OF_SIZE else "fails_otherwise"
        rarest = rarest_of(outcome, facts)
        image = images.get(outcome.identity or "")
        stops = stops_of(image, settings) if image is not None and outcome.stage is not Stage.FETCH else (None, None)
        expected[min(outcome.words, 1_023), rarest if rarest == 255 else rarest // 4 * 4, *stops, what] += 1
    assert_same(
        [tuple(row.values()) for row in read(run, "outcome_joint")],
        [(*of, pairs) for of, pairs in expected.items()],
        "outcome_joint",
    )
