"""Parquet files of a run as datasets of Arrow: nothing is read before a scan, and then only what it asks for."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from altalign import storage
from altalign.audit.rows import DROPPED as STAGES
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import REASONS, WORDS, Stage
from altalign.data.schema import DROPPED, SAMPLE
from altalign.data.stages import own_files
from altalign.errors import UnreadableError, UsageError

OF_SHARDS = SAMPLE.append(pa.field("shard", pa.string()))


def samples(run: RunFolder) -> ds.Dataset:
    """The side-cars that the manifest names, in order; `shard` is known of each file before it is opened."""
    names = shards(run)
    paths = [run.path("shards", f"{name.removesuffix('.tar')}.parquet") for name in names]
    return _dataset(run, paths, OF_SHARDS, [pc.field("shard") == name for name in names])


def shards(run: RunFolder) -> list[str]:
    """The names of the tars, as the manifest has them.

    Raises UsageError: the run is not finished; UnreadableError: the manifest does not name them.
    """
    run.check_finished("it has no samples yet")
    path = run.path("manifest.json")
    try:
        return [str(shard["name"]) for shard in storage.read_json(path)["shards"]]
    except (KeyError, TypeError):
        raise UnreadableError(f"{path}: it does not name the shards") from None


def images(run: RunFolder, rows: Any) -> Iterator[bytes]:
    """The bytes of the images of some samples, in order; many at a time of an object store.

    Raises DamagedError: a tar is not there, or ends before its image does.
    """
    places = pa.table(rows).select(["shard", "tar_offset", "tar_bytes"]).to_pylist()

    def read(place: Mapping[str, Any]) -> bytes:
        path = run.path("shards", place["shard"])
        image = storage.read_range(path, place["tar_offset"], place["tar_bytes"])
        if missing := place["tar_bytes"] - len(image):
            raise UnreadableError(f"{path}: it ends {missing:,} bytes before an image does")
        return image

    with own_files(run.folder):
        yield from storage.each(read, places, of=run.folder)


def dropped(run: RunFolder, reasons: Sequence[str]) -> ds.Dataset:
    """The dropped rows of these reasons, or all; only the files of their stages are opened.

    Raises UsageError: there is no such reason, or the run kept no dropped rows.
    """
    if run.settings.get("audit", {}).get("keep_dropped") is False:
        raise UsageError(f"{run.folder}: it kept no dropped rows ([audit] keep_dropped = false); its counts are exact")
    wanted = [check_reason(reason) for reason in reasons]
    stages = [name for name in STAGES if not wanted or {*REASONS[Stage(name)]} & {*wanted}]
    folders = [run.path("dropped", stage) for stage in stages]
    paths = [storage.join(folder, name) for folder in folders for name in storage.names(folder, ".parquet")]
    found = _dataset(run, paths, DROPPED)
    return found.filter(pc.field("reason").isin(wanted)) if wanted else found


def check_reason(named: str, *others: str) -> str:
    """The name of a reason.

    Raises UsageError: there is none of this name; the error proposes the one that was probably meant.
    """
    known = [*others, *WORDS]
    if named not in known:
        near = difflib.get_close_matches(str(named), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"{named}: no such reason ({hint})")
    return str(named)


def _dataset(
    run: RunFolder, paths: Iterable[str], schema: pa.Schema, partitions: list[pc.Expression] | None = None
) -> ds.Dataset:
    system, _ = storage.in_arrow(run.folder)
    names = [storage.in_arrow(path)[1] for path in paths]
    return ds.FileSystemDataset.from_paths(
        names, schema=schema, format=ds.ParquetFileFormat(), filesystem=system, partitions=partitions
    )
