"""What other thresholds would keep: cells small enough for a page, whose sums are exact at every stop of the sliders."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import slider_stops
from altalign.audit.report import files
from altalign.audit.report.sliders import DETAILS, Slider, of_images, of_text
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError

CELLS_AT_MOST = 400_000  # of each kind; together some 2 MB of the page
KEPT, NOT_SEARCHED = (
    slider_stops.OUTCOMES.index(slider_stops.KEPT),
    slider_stops.OUTCOMES.index(slider_stops.NOT_SEARCHED),
)

# Columns of the joint counts, and the sliders that are asked of each.
_WORDS_AND_NGRAMS = {"words": ("words_at_least", "words_at_most"), "rarest_log2": ("vocabulary",)}
_OF_TEXT = {**_WORDS_AND_NGRAMS, "images_per_text": ("images_per_text",), "texts_per_image": ("texts_per_image",)}
_OF_IMAGE = {**_WORDS_AND_NGRAMS, "short_side_px": ("short_side",), "aspect_percent": ("aspect",)}


@dataclass(frozen=True)
class Cells:
    """Pairs by combination: `columns` has a slider's `numbers`, uint8[n]; `pairs` is int64[n]."""

    columns: dict[str, np.ndarray] = field(repr=False)
    pairs: np.ndarray = field(repr=False)

    def packed(self) -> dict[str, Any]:
        """For a page: names of the columns, and bytes in base64: pairs (little-endian uint32, or float64 where that is too small), then column after column."""
        wide = bool(len(self.pairs)) and int(self.pairs.max()) >= 2**32
        data = b"".join(
            [
                self.pairs.astype("<f8" if wide else "<u4").tobytes(),
                *(column.tobytes() for column in self.columns.values()),
            ]
        )
        return {
            "n": len(self.pairs),
            "wide": wide,
            "columns": list(self.columns),
            "data": base64.b64encode(zlib.compress(data, 9)).decode(),
        }


@dataclass(frozen=True)
class WhatIf:
    """The sliders, and what they sum.

    Attributes:
        sliders: in order.
        judge: pairs by the text sliders; None where the run did not count them.
        outcome: pairs that judge kept, by words, vocabulary, size, shape and outcome (a number of `stops.OUTCOMES`);
        None likewise.
        kept_by_judge: as the run counted them.
        kept_at_the_end: the same.
        is_decontaminated: whether images were searched for near-duplicates.
        is_within_pool: whether among one another, too.
        notes: what is to be known.
        missing: why there is nothing to move; else empty.
    """

    sliders: tuple[Slider, ...]
    judge: Cells | None
    outcome: Cells | None
    kept_by_judge: int
    kept_at_the_end: int
    is_decontaminated: bool
    is_within_pool: bool
    notes: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Yield:
    """Pairs that judge keeps, exactly; pairs at the end (None: unknown), whether that is an estimate, and how many of them nothing has searched."""

    judge: int
    end: int | None
    is_estimate: bool
    not_searched: int


def of_run(run: RunFolder, *, kept_by_judge: int, kept_at_the_end: int) -> WhatIf:
    """Sliders and cells of a run."""
    config = run.config
    joint = _columns(run, "audit/pairs_joint.parquet", (*_OF_TEXT, "pairs"))
    outcome = _columns(run, "audit/outcome_joint.parquet", (*_OF_IMAGE, "outcome", "pairs"))
    is_within_pool = config.dedup.within_pool != "off"
    is_searched = bool(config.decontaminate.test_sets) or is_within_pool
    if joint is None:
        why = "This run has no audit/pairs_joint.parquet, so nothing can be said of other thresholds."
        return WhatIf((), None, None, kept_by_judge, kept_at_the_end, is_searched, is_within_pool, missing=why)
    found = files.facts(run, "audit/histograms.json").get("ngram_count", [])
    ngrams = np.array([] if files.facts(run, "tables/vocabulary.json").get("all", True) else found, np.int64).reshape(
        -1, 2
    )
    of_size = of_images(config, is_counted=outcome is not None, is_searched=is_searched)
    detail = 0
    while True:
        sliders = (*of_text(config, joint, ngrams, detail=detail), *of_size)
        judge, cells = (
            _cells(joint, _OF_TEXT, sliders),
            None if outcome is None else _cells(outcome, _OF_IMAGE, sliders),
        )
        if max(len(judge.pairs), 0 if cells is None else len(cells.pairs)) <= CELLS_AT_MOST or detail == DETAILS - 1:
            break
        detail += 1
    notes = tuple(
        _notes(is_searched=is_searched, is_learned=not config.decontaminate.calibration, is_within_pool=is_within_pool)
    )
    return _checked(WhatIf(sliders, judge, cells, kept_by_judge, kept_at_the_end, is_searched, is_within_pool, notes))


def _notes(*, is_searched: bool, is_learned: bool, is_within_pool: bool) -> list[str]:
    notes = []
    if is_searched and is_learned:
        notes.append(
            "What decontamination found is taken as it is. A rerun learns its map and clusters from the images that are then there, "
            "and may find a few other pairs."
        )
    if is_within_pool:
        notes.append(
            "Near-duplicates within the pool: which image stays depends on what else is there, so other numbers at the end are estimates."
        )
    return notes


def _columns(run: RunFolder, name: str, columns: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """Columns as int64: null is -1, outcomes are their numbers."""
    table = files.table(run, name, columns)
    if table is None:
        return None
    numbers = {
        column: np.asarray(table[column].cast(pa.int64()).fill_null(pa.scalar(-1)))
        for column in columns
        if column != "outcome"
    }
    return numbers if "outcome" not in columns else numbers | {"outcome": _outcomes(run, name, table["outcome"])}


def _outcomes(run: RunFolder, name: str, column: "pa.ChunkedArray[Any]") -> np.ndarray:
    encoded: Any = column.combine_chunks().dictionary_encode()
    if unknown := [value for value in encoded.dictionary.to_pylist() if value not in slider_stops.OUTCOMES]:
        raise UnreadableError(f"{run.path(name)}: {unknown[0]!r} is no outcome")
    return np.array([slider_stops.OUTCOMES.index(value) for value in encoded.dictionary.to_pylist()], np.int64)[
        np.asarray(encoded.indices)
    ]


def _cells(joint: dict[str, np.ndarray], of: dict[str, tuple[str, ...]], sliders: tuple[Slider, ...]) -> Cells:
    """Sums of the combinations that no stop tells apart."""
    named = {slider.key: slider for slider in sliders}
    columns = {key: named[key].numbers(joint[name]) for name, keys in of.items() for key in keys}
    if "outcome" in joint:
        columns["outcome"] = joint["outcome"].astype(np.uint8)
    packed = np.zeros(len(joint["pairs"]), np.int64)
    for column in columns.values():
        packed = packed << 8 | column
    distinct, inverse = np.unique(packed, return_inverse=True)
    pairs = np.zeros(len(distinct), np.int64)
    np.add.at(pairs, inverse, joint["pairs"])
    shifts = range(8 * (len(columns) - 1), -1, -8)
    return Cells(
        {key: (distinct >> shift & 255).astype(np.uint8) for key, shift in zip(columns, shifts, strict=True)}, pairs
    )


def _checked(found: WhatIf) -> WhatIf:
    """With a note where the sums at the run's own thresholds are not what it counted."""
    own = yields(found, {})
    if own.judge == found.kept_by_judge and own.end in (None, found.kept_at_the_end):
        return found
    said = (
        f"The joint counts give {own.judge:,} pairs after judge and {own.end or 0:,} at the end at the run's own thresholds; it counted "
        f"{found.kept_by_judge:,} and {found.kept_at_the_end:,}. Do not rely on this section."
    )
    return WhatIf(**{**vars(found), "notes": (said, *found.notes)})


def yields(found: WhatIf, moved: dict[str, int]) -> Yield:
    """What is kept with some sliders at other stops than the run's own: the page's arithmetic, which a test holds against this.

    Text thresholds that are looser: the share that survives later is taken from the pairs that this run has seen to the
    end.
    """
    assert found.judge is not None
    at = {slider.key: moved.get(slider.key, slider.at) for slider in found.sliders}
    judge = int(found.judge.pairs[_stay(found.judge, found.sliders, at)].sum())
    if found.outcome is None:
        return Yield(judge, None, is_estimate=True, not_searched=0)
    text = _stay(found.outcome, [slider for slider in found.sliders if slider.is_of_text], at)
    stay = text & _stay(found.outcome, [slider for slider in found.sliders if not slider.is_of_text], at)
    outcome, pairs = found.outcome.columns["outcome"], found.outcome.pairs
    not_searched = int(pairs[stay & (outcome == NOT_SEARCHED)].sum())
    end, seen = int(pairs[stay & (outcome == KEPT)].sum()) + not_searched, int(pairs[text].sum())
    is_moved = any(at[slider.key] != slider.at for slider in found.sliders)
    is_estimate = judge != seen or (found.is_within_pool and is_moved)
    if judge != seen:
        end, not_searched = (round(number * judge / seen) if seen else 0 for number in (end, not_searched))
    return Yield(judge, end, is_estimate, not_searched if found.is_decontaminated else 0)


def _stay(cells: Cells, sliders: "tuple[Slider, ...] | list[Slider]", at: dict[str, int]) -> np.ndarray:
    stay = np.ones(len(cells.pairs), bool)
    for slider in sliders:
        if slider.key in cells.columns:
            stay &= slider.allows(cells.columns[slider.key], at[slider.key])
    return stay
