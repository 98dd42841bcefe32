"""What a run leaves for its audit, held against plain loops over the reference's rows."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from altalign.data.reasons import KEPT, DropReason, Stage
from tests.end_to_end.oracle import assert_same, log2_in_8_bits
from tests.reference.curation import RULES_OF_MEASURE, Curation, ImageFacts, Outcome, Tables


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


def assert_text_measures(run: Path, facts: Tables, curation: Curation) -> None:
    """audit/text_measures.parquet: every candidate counts once in each measure."""

    def above(count: int | None) -> int:
        return 0 if count is None else count if count < 1_024 else 1_024 + log2_in_8_bits(count)

    expected: Counter[tuple[Any, ...]] = Counter()
    for outcome in (outcome for outcome in [*curation.dropped, *curation.kept] if outcome.stage is not Stage.EXTRACT):
        values = {
            "words": min(outcome.words, 1_023),
            "rarest_log2": rarest_of(outcome, facts),
            "images_per_text": above(outcome.images_per_text),
            "texts_per_image": above(outcome.texts_per_image),
        }
        failed = {*outcome.failed} - {DropReason.PAIR_REPEATED} if outcome.stage is Stage.JUDGE else set()
        expected.update((name, value, bool(failed - RULES_OF_MEASURE[name])) for name, value in values.items())
    _assert_measures(run, "text_measures", expected)


def assert_image_measures(run: Path, curation: Curation, images: Mapping[str, ImageFacts]) -> None:
    """audit/image_measures.parquet: every candidate whose image was fetched counts once in each measure."""
    before = (Stage.EXTRACT, Stage.JUDGE, Stage.FETCH)
    expected: Counter[tuple[Any, ...]] = Counter()
    for outcome in (outcome for outcome in [*curation.dropped, *curation.kept] if outcome.stage not in before):
        image = images[outcome.identity or ""]
        values: dict[str, int | None] = dict.fromkeys(("short_side_px", "aspect_percent", "nsfw_percent"))
        if image.width is not None and image.height is not None:
            short, long = sorted((image.width, image.height))
            values |= {"short_side_px": min(short, 1_024), "aspect_percent": min(100 * long // max(short, 1), 1_001)}
        failed = {*outcome.failed} if outcome.stage is Stage.IMAGE else set()
        expected.update((name, value, bool(failed - RULES_OF_MEASURE[name])) for name, value in values.items())
    _assert_measures(run, "image_measures", expected)


def _assert_measures(run: Path, name: str, expected: "Counter[tuple[Any, ...]]") -> None:
    rows = [tuple(row.values()) for row in read(run, name)]
    assert_same(rows, [(*of, n) for of, n in expected.items()], name)
    if rows != sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or 0, row[2])):
        raise AssertionError(f"{name} is not in the order of its columns")


def assert_failed(run: Path, curation: Curation) -> None:
    """audit/failed.parquet; and its sums are those of counts.parquet."""
    expected: Counter[tuple[Any, ...]] = Counter()
    for outcome in curation.dropped:
        expected[outcome.stage.value, outcome.candidate.source, tuple(outcome.failed)] += 1
    expected.update(
        {(stage, source, ()): rows for (stage, source, reason), rows in curation.counts.items() if reason == KEPT}
    )
    rows = read(run, "failed")
    found = [(row["stage"], row["source"], tuple(row["failed"]), row["rows"]) for row in rows]
    assert_same(found, [(*of, n) for of, n in expected.items() if n], "failed")
    assert_reconciled(run)


def assert_reconciled(run: Path) -> None:
    """The first rules that hold of audit/failed.parquet add up to counts.parquet."""
    firsts, counts = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for row in read(run, "failed"):
        firsts[row["stage"], row["source"], row["failed"][0] if row["failed"] else KEPT] += row["rows"]
    for row in pq.read_table(run / "counts.parquet").to_pylist():
        counts[row["stage"], row["source"], row["reason"]] += row["rows"]
    if firsts != counts:
        raise AssertionError(f"failed.parquet has {firsts}, counts.parquet {counts}")
