"""How many pairs other thresholds would keep: few enough cells for a page, with exact sums at every slider stop."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import slider_stops, storage, terminal
from altalign.audit.report import files
from altalign.audit.report.sliders import DETAILS, Slider, of_images, of_text
from altalign.audit.run_folder import RunFolder
from altalign.audit_tables import OUTCOME_JOINT, PAIRS_JOINT, AuditTable
from altalign.errors import UnreadableError
from altalign.stages import REMOVED_FILE, is_made_of_others

CELLS_AT_MOST = 400_000  # of each kind; together about 2 MB of the page
KEPT = slider_stops.OUTCOMES.index(slider_stops.KEPT)
NOT_SEARCHED = slider_stops.OUTCOMES.index(slider_stops.NOT_SEARCHED)

Numbers = npt.NDArray[np.int64]  # int64[n]

# Columns of the joint counts, and the sliders that each is compared with.
_WORDS_AND_NGRAMS = {"words": ("words_at_least", "words_at_most"), "rarest_log2": ("vocabulary",)}
_OF_TEXT = {**_WORDS_AND_NGRAMS, "images_per_text": ("images_per_text",), "texts_per_image": ("texts_per_image",)}
_OF_IMAGE = {**_WORDS_AND_NGRAMS, "short_side_px": ("short_side",), "aspect_percent": ("aspect",)}


@dataclass(frozen=True)
class Cells:
    """Pairs by combination of values: `columns` has `Slider.numbers` of each slider, uint8[n]; `pairs` is int64[n]."""

    columns: dict[str, npt.NDArray[np.uint8]] = field(repr=False)
    pairs: Numbers = field(repr=False)

    def packed(self) -> Mapping[str, object]:
        """The cells for a page: names of the columns, and zlib-compressed bytes in base64.

        The bytes are the pairs (little-endian uint32, or float64 if that is too small), then column after column.
        """
        wide = bool(len(self.pairs)) and int(self.pairs.max()) >= 2**32
        arrays = [self.pairs.astype("<f8" if wide else "<u4"), *self.columns.values()]
        data = zlib.compress(b"".join(array.tobytes() for array in arrays), 9)
        named = {"n": len(self.pairs), "wide": wide, "columns": list(self.columns)}
        return named | {"data": base64.b64encode(data).decode()}


@dataclass(frozen=True)
class WhatIf:
    """The sliders, and the cells that they add up.

    Attributes:
        sliders: in the order of the page.
        judge: pairs by the text sliders; None if the run did not count them.
        outcome: pairs that judge kept, by words, vocabulary, size, shape and outcome (its number in
            `slider_stops.OUTCOMES`); None likewise.
        kept_by_judge: pairs that judge kept, as the run counted them.
        kept_at_the_end: pairs that the last stage kept, as the run counted them.
        is_decontaminated: whether images were searched for near-duplicates.
        is_within_pool: whether they were also searched among each other.
        notes: what a reader needs to know.
        missing: why there are no sliders; empty if there are.
        command: what begins the command that applies them.
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
    command: str = ""


@dataclass(frozen=True)
class Yield:
    """Pairs that judge keeps (exact) and pairs at the end.

    Attributes:
        judge: pairs that judge keeps.
        end: pairs at the end; None: unknown.
        is_estimate: whether `end` is an estimate.
        not_searched: pairs at the end whose images were not searched for near-duplicates.
    """

    judge: int
    end: int | None
    is_estimate: bool
    not_searched: int


def of_run(run: RunFolder, *, kept_by_judge: int, kept_at_the_end: int) -> WhatIf:
    """Reads the sliders and cells of a run."""
    config = run.config
    joint, outcome = _columns(run, PAIRS_JOINT), _columns(run, OUTCOME_JOINT)
    is_within_pool = config.dedup.within_pool != "off"
    is_searched = bool(config.decontaminate.test_sets) or is_within_pool
    if joint is None or is_made_of_others(run.folder):
        why = f"This run has no {PAIRS_JOINT.path}, so other thresholds cannot be tried."
        if joint is not None:
            why = "This run was made of another one: other thresholds are tried on the report of that run."
        return WhatIf((), None, None, kept_by_judge, kept_at_the_end, is_searched, is_within_pool, missing=why)
    has_vocabulary = not files.facts(run, "tables/vocabulary.json").get("all", True)
    counts = files.facts(run, "audit/histograms.json").get("ngram_count", []) if has_vocabulary else []
    ngrams = np.array(counts, np.int64).reshape(-1, 2)
    of_size = of_images(config, is_counted=outcome is not None, is_searched=is_searched)
    detail = 0
    while True:
        sliders = (*of_text(config, joint, ngrams, detail=detail), *of_size)
        judge = _cells(joint, _OF_TEXT, sliders)
        cells = None if outcome is None else _cells(outcome, _OF_IMAGE, sliders)
        if max(len(judge.pairs), 0 if cells is None else len(cells.pairs)) <= CELLS_AT_MOST or detail == DETAILS - 1:
            break
        detail += 1
    is_learned = not config.decontaminate.calibration
    notes = _notes(is_searched=is_searched, is_learned=is_learned, is_within_pool=is_within_pool)
    removed = _removed(run)
    notes, command = [*notes, *removed], _command(run, is_removed=bool(removed))
    kept = kept_by_judge, kept_at_the_end
    return _checked(WhatIf(sliders, judge, cells, *kept, is_searched, is_within_pool, tuple(notes), command=command))


def _command(run: RunFolder, *, is_removed: bool) -> str:
    """What applies other thresholds: the settings of the run, which name all that was added to it later too."""
    if is_removed:
        return f"{terminal.command('curate', run.path('config.toml'))} --set run.folder=OUT"
    return terminal.command("curate", run.path("config.toml"), "--rerun")


def _removed(run: RunFolder) -> list[str]:
    """What to do where pairs were removed, which a rerun would bring back."""
    again = f"curate into another folder, then altalign remove OUT --removed {REMOVED_FILE} of this run"
    is_there = storage.exists(run.path(REMOVED_FILE))
    return [f"Pairs were removed from this run, so it is not run anew: {again}."] if is_there else []


def _notes(*, is_searched: bool, is_learned: bool, is_within_pool: bool) -> list[str]:
    notes = []
    if is_searched and is_learned:
        notes.append(
            "The near-duplicates are those that this run found. A rerun learns its map and clusters from the images "
            "that it then has, and may find slightly different ones."
        )
    if is_within_pool:
        notes.append(
            "Which image of a group of near-duplicates stays depends on the other images, so changed numbers at the "
            "end are estimates."
        )
    return notes


def _columns(run: RunFolder, of: AuditTable) -> dict[str, Numbers] | None:
    """Columns as int64[n]: a null is -1, an outcome its number in `slider_stops.OUTCOMES`; None if there is no file."""
    if (table := files.table(run, of)) is None:
        return None
    if of is OUTCOME_JOINT:
        numbers = pc.index_in(table["outcome"], value_set=pa.array(slider_stops.OUTCOMES))
        if numbers.null_count:
            unknown = table["outcome"].filter(numbers.is_null())[0].as_py()
            raise UnreadableError(f"{run.path(of.path)}: {unknown!r} is no outcome")
        table = table.set_column(table.schema.get_field_index("outcome"), "outcome", numbers)
    return {name: files.numbers(table, name) for name in table.column_names}


def _cells(joint: dict[str, Numbers], of: dict[str, tuple[str, ...]], sliders: tuple[Slider, ...]) -> Cells:
    """Adds up the combinations that no stop of the sliders tells apart."""
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
    unpacked = {key: (distinct >> shift & 255).astype(np.uint8) for key, shift in zip(columns, shifts, strict=True)}
    return Cells(unpacked, pairs)


def _checked(found: WhatIf) -> WhatIf:
    """Adds a warning if the sums at the run's own thresholds differ from what it counted."""
    own = yields(found, {})
    if own.judge == found.kept_by_judge and own.end in (None, found.kept_at_the_end):
        return found
    said = (
        f"Do not rely on this section. At the run's own thresholds the joint counts give {own.judge:,} pairs after "
        f"judge and {own.end or 0:,} at the end, but the run counted {found.kept_by_judge:,} and "
        f"{found.kept_at_the_end:,}."
    )
    return WhatIf(**{**vars(found), "notes": (said, *found.notes)})


def yields(found: WhatIf, moved: dict[str, int]) -> Yield:
    """The pairs that are kept with these sliders moved to other stops; a test compares the page's arithmetic with it.

    If text thresholds are looser, the share of pairs that survives the later stages is taken from this run's own pairs.
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


def _stay(cells: Cells, sliders: Sequence[Slider], at: dict[str, int]) -> npt.NDArray[np.bool_]:
    stay = np.ones(len(cells.pairs), bool)
    for slider in sliders:
        if slider.key in cells.columns:
            stay &= slider.allows(cells.columns[slider.key], at[slider.key])
    return stay
