"""`altalign add --mode frozen`: the tables stay as they are, and judge what comes.

What was counted of all rows is compared with them before they take its place again: how many entries would come and go,
and of how many of the new rows the verdict would be another.
"""

import shutil
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.reasons import reasons_of
from altalign.pipelines.figures.frequent_strings import Seen, WantedHashes, wanted_path
from altalign.pipelines.figures.text_measures import Tables, measure
from altalign.pipelines.run import pool, waves
from altalign.pipelines.run.sampled import Grown
from altalign.pipelines.run.tables.extracted import EXTRACTED
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import judge
from altalign.storage import arrays

_OF_TABLES = ("images_per_text", "texts_per_image", "ngram_count")  # of the histograms
_NAMES = {"ngrams": "vocabulary", "texts": "over_shared_texts", "images": "over_captioned_images"}


def keep_tables(run: Grown) -> None:
    """Have the tables of the run before in the place of those of all rows, and note how far these are from them."""
    before = Run(run.before, run.config, run.files)
    old_files = len(before.finished(EXTRACTED.step))
    drift = {**_entries(before, run), **_rows(before, run, old_files)}
    first_files = [*waves.facts(before).get("first_files", []), old_files]
    for path in storage.files_below(before.path("tables")):
        _copy(path, run.path("tables", storage.name(path)))
    _copy(wanted_path(before), wanted_path(run))
    storage.write_json(run.path("tables", waves.FILE), {"first_files": first_files, "drift": drift})
    path = run.path("audit", "histograms.json")
    counted, kept = storage.read_json(path), storage.read_json(before.path("audit", "histograms.json"))
    storage.write_json(path, {**counted, **{name: kept[name] for name in _OF_TABLES if name in kept}})


def _copy(source: str, to: str) -> None:
    with storage.open_read(source) as file, storage.write(to) as copy:
        shutil.copyfileobj(file, copy)


def _entries(before: Run, run: Run) -> dict[str, dict[str, int] | None]:
    """How many entries of each table would come and go; None of n-grams where one of the pools has too few of them."""
    found = dict[str, dict[str, int] | None]()
    for kind, name in _NAMES.items():
        if any(storage.read_json(each.path("tables", f"{name}.json")).get("all") for each in (before, run)):
            found[kind] = None
            continue
        old, new = (arrays.mapped(each.path("tables", f"{name}.npy")) for each in (before, run))
        same = len(np.intersect1d(old, new, assume_unique=True))
        found[kind] = {"are": len(old), "would_come": len(new) - same, "would_go": len(old) - same}
    return found


def _rows(before: Run, run: Run, old_files: int) -> dict[str, dict[str, int]]:
    """How many rows are new, how many the text rules keep, and of how many the tables of all rows would judge anew."""
    rows = kept = would_come = would_go = 0
    both = Tables.of(before), Tables.of(run)
    for unit in pool.units(run):
        if unit["file"] < old_files:
            continue
        row = unit["row"]
        for batch in pool.candidates(run, unit):
            is_kept, would_be = _are_kept(run, batch, both, file=unit["file"], first_row=row)
            row += batch.num_rows
            rows, kept = rows + len(is_kept), kept + int(is_kept.sum())
            would_come += int((would_be & ~is_kept).sum())
            would_go += int((is_kept & ~would_be).sum())
    return {"rows": {"are": rows, "kept": kept, "would_come": would_come, "would_go": would_go}}


def _are_kept(
    run: Run, batch: pa.RecordBatch, both: tuple[Tables, Tables], *, file: int, first_row: int
) -> Iterator[npt.NDArray[np.bool_]]:
    """Whether each of n candidates passes the text rules by either of two sets of tables."""
    for tables in both:
        measured = measure(batch, tables, Seen(WantedHashes.of(run)))
        verdict, _ = reasons_of(judge.verdicts(run, batch, measured, file=file, first_row=first_row))
        yield verdict.is_null().to_numpy(zero_copy_only=False)
