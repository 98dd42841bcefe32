"""What img2dataset leaves beside its tars: statistics (`00000_stats.json`), and side-cars (`00000.parquet`).

A tar holds the images that came. Its side-car has a row for each URL that was asked for, with a status; those that did
not come are candidates without an image, which the web may have now.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.schema import CANDIDATE
from altalign.errors import UnreadableError
from altalign.pipelines.read.stretches import Stretch, as_found
from altalign.pipelines.read.tables import needed_columns, table
from altalign.settings.curate import InputSettings
from altalign.storage import parquet

STATS = "_stats.json"
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_NAME = "key"  # of a row; of an image that came, its members in the tar have this name
_COLUMNS = {_NAME, "status", "url"}
_CAME = "success"


def listed(found: Sequence[str]) -> list[str]:
    """The files that an input of tars reads of what its globs found, sorted.

    A folder stands for its tars and their side-cars. Statistics are left out.
    """
    files = {
        path: None
        for place in found
        for path in (_inside(place) if storage.kind(place) == "folder" else [place])
        if not path.endswith(STATS)
    }
    return sorted(files)


def is_one(path: str) -> bool:
    """Whether a Parquet file is a side-car of img2dataset, by its columns."""
    if not path.endswith(".parquet"):
        return False
    try:
        with parquet.reading(path) as file:
            return _COLUMNS.issubset(file.schema_arrow.names)
    except UnreadableError:
        return False


def check(path: str, settings: InputSettings) -> None:
    """Refuse a side-car without captions.

    Raises:
        UsageError: it lacks the column, or one of its columns has another type.
        UnreadableError: it is broken.
    """
    needed_columns.check(path, _as_table(settings))


def read(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    """Yields the candidates of a side-car whose images did not come; their names begin with this one.

    Raises:
        UnreadableError: it is broken.
    """
    for found in table.read_parquet(path, _as_table(settings), named, named_by=_NAME):
        status = parquet.strings(found.rows, "page_url")
        rows = found.rows.filter(pc.not_equal(status.fill_null(""), pa.scalar(_CAME)))
        none = pa.nulls(rows.num_rows, pa.string())
        at = CANDIDATE.get_field_index("page_url")
        yield as_found(rows.select(CANDIDATE.names).set_column(at, CANDIDATE.field("page_url"), none))


def _as_table(settings: InputSettings) -> InputSettings:
    """Settings that read a side-car: its status takes the place of a page's URL."""
    return InputSettings(
        kind="table",
        paths=settings.paths,
        page_url_column="status",
        keep_columns=settings.keep_columns,
        decode_entities=settings.decode_entities,
    )


def _inside(folder: str) -> list[str]:
    names = storage.names(folder)
    tars = [name for name in names if name.lower().endswith(_TARS)]
    stems = {PurePath(name).name.split(".")[0] for name in tars}
    beside = [name for name in names if name.endswith(".parquet") and name.removesuffix(".parquet") in stems]
    is_theirs = bool(beside) and is_one(storage.join(folder, beside[0]))
    return [storage.join(folder, name) for name in (*tars, *(beside if is_theirs else []))]
