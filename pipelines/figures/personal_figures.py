"""Personal data in the captions of a run, measured on a sample: shares with their intervals, by language."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.dedup.thresholds import Share
from altalign.filters import personal
from altalign.models import languages
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

CAPTIONS = 10_000  # at most, in the sample
SHARDS = 32  # at most, that it is drawn from, evenly among all: a sample needs no more
MARGIN = 0.2  # between two languages (docs/guides/score.md); a caption nearer to both is `und`


def measured(run: Run, shards: Sequence[str]) -> dict[str, Any]:
    """The entry `personal_data` of summary.json; none of a run without shards, which have these names.

    The sample is drawn by key, a hash: the same data gives the same sample. Of each language, and first of all (``),
    it says how many captions were looked at, and of each kind of personal data how many have it, and the 95 %
    interval of Wilson.
    """
    if not shards:
        return {}
    captions = _sample(run, shards)
    masks = personal.found(captions, personal.KINDS, run.config.text.phone_countries)
    labels = languages.label(captions, languages.opened(languages.shipped_model()), margin_at_least=MARGIN).labels
    rates = {
        language: {"captions": int(rows.sum())}
        | {kind: Share(int(mask[rows].sum()), int(rows.sum())).to_json() for kind, mask in masks.items()}
        for language, rows in _rows_of_languages(labels)
    }
    return {"personal_data": {"phone_countries": run.config.text.phone_countries, "rates": rates}}


def _sample(run: Run, shards: Sequence[str]) -> pa.StringArray:
    """The captions with the smallest keys, of shards at even distances."""
    count = min(SHARDS, len(shards))
    paths = [run.path("shards", f"{shards[number * len(shards) // count]}.parquet") for number in range(count)]
    tables = [*storage.each(lambda path: parquet.read_table(path, ["key", "caption"]), paths, place=run.folder)]
    return parquet.strings(pa.concat_tables(tables).sort_by("key").slice(0, CAPTIONS), "caption")


def _rows_of_languages(labels: "pa.Array[Any]") -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yields each language and which rows have it, bool[n]: all rows (``), then the most frequent language first."""
    yield "", np.ones(len(labels), bool)
    names = np.array(labels.to_pylist(), object)
    for language, _ in sorted(Counter(names.tolist()).items(), key=lambda each: (-each[1], each[0])):
        yield language, names == language
