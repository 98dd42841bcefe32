"""Curated runs of pairs in hand: what experiments train on, each pair with its source."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

import altalign

scale = 1  # times the pairs that are drawn to train on
Pair = tuple[bytes, str]  # image and caption


class Absent(Exception):  # noqa: N818 - no error: what needs it is skipped
    """A set cannot be made here, for this reason."""


def curated(folder: Path, sources: Mapping[str, Iterable[Pair]]) -> None:
    """Curate pairs to a run in a new folder. Every rule is as wide as it goes: experiments choose pairs themselves."""
    most = 2**31 - 1
    with TemporaryDirectory(dir=folder.parent) as tables:
        inputs = [_table(Path(tables, f"{name}.parquet"), name, pairs) for name, pairs in sources.items()]
        altalign.curate(
            {
                "run": {"folder": str(folder), "keep_work": False},
                "input": inputs,
                "text": {"words_at_least": 1, "words_at_most": most, "images_per_text_at_most": most},
                "image": {"short_side_above_px": 0, "aspect_ratio_below": 1e6, "texts_per_image_at_most": most},
            },
            progress=False,
        )


def _table(path: Path, name: str, pairs: Iterable[Pair]) -> dict[str, object]:
    """Write pairs as a table; gives the input that reads it."""
    images, captions = zip(*pairs, strict=True)
    pq.write_table(pa.table({"image": pa.array(images, pa.binary()), "caption": captions}), path)
    return {"name": name, "kind": "table", "paths": [str(path)], "url_column": "", "image_column": "image"}
