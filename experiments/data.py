"""Curated runs of pairs in hand: what experiments train on, each pair with its source."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import altalign
from altalign import cli
from altalign.errors import AltalignError
from altalign.settings.common import merged

scale = 1  # times the pairs that are drawn to train on
Pair = tuple[bytes, str]  # image and caption
MOST = 2**31 - 1
WIDE: dict[str, Any] = {  # every rule as wide as it goes: experiments choose pairs themselves
    "text": {"words_at_least": 1, "words_at_most": MOST, "images_per_text_at_most": MOST},
    "image": {"short_side_above_px": 0, "aspect_ratio_below": 1e6, "texts_per_image_at_most": MOST},
}


class Absent(Exception):  # noqa: N818 - no error: what needs it is skipped
    """A set cannot be made here, for this reason."""


def set_of(make: Callable[[], Mapping[str, Iterable[Pair]]]) -> Callable[[Path], None]:
    """A function that curates to a new folder what another one makes."""
    return lambda folder: curated(folder, make())


def curated(folder: Path, sources: Mapping[str, Iterable[Pair]]) -> None:
    """Curate pairs to a run in a new folder. Every rule is as wide as it goes."""
    with TemporaryDirectory(dir=folder.parent) as place:
        curated_tables(folder, {name: table(Path(place, f"{name}.parquet"), of) for name, of in sources.items()})


def curated_tables(folder: Path, tables: Mapping[str, Path], rules: Mapping[str, Any] | None = None) -> None:
    """The same of tables by their source; with rules, which are settings of a curation."""
    inputs = [
        {"name": name, "kind": "table", "paths": [str(path)], "url_column": "", "image_column": "image"}
        for name, path in tables.items()
    ]
    settings = merged(WIDE, {"run": {"folder": str(folder), "keep_work": False}, "input": inputs})
    altalign.curate(merged(settings, rules or {}), progress=False)


def command(*words: str) -> None:
    """Run a command of altalign, as a user types it."""
    if cli.main(list(words)):
        raise AltalignError(f"altalign {' '.join(words)}: it failed; what it said stands above")


def table(path: Path, pairs: Iterable[Pair]) -> Path:
    """Write pairs as a table; gives its path."""
    images, captions = zip(*pairs, strict=True)
    pq.write_table(pa.table({"image": pa.array(images, pa.binary()), "caption": captions}), path)
    return path
