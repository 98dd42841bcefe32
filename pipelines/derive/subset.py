"""Runs of the pairs that a list names (`altalign select --list`), or of shares of a run (`--share`)."""

import functools
import io
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data.reasons import DropReason, drop_where
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.derive import choose_rows, make_run, units
from altalign.pipelines.derive.make_run import Making
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.engine.options import options
from altalign.pipelines.near import shard_images
from altalign.pipelines.run.shard_tables import ChosenFacts, ShardOfParent
from altalign.pipelines.run.units import Run, content
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

_NPY = b"\x93NUMPY"
_PARQUET = b"PAR1"
Files = tuple[tuple[str, str], ...]  # paths, and SHA-256 of what is in them: a process keeps the keys of a list
UID = "uid"  # of DataComp's pools, where it is kept as a column


# A list of keys ------------------------------------------------------------------------------------------------------


def subset(parent: Parent, run: Run, lists: Sequence[str], flags: list[str]) -> int:
    """Make a run of the pairs whose key, or whose `uid` among the kept columns, the lists have.

    Raises:
        UsageError: a list cannot be read, or has nothing.
    """
    files = tuple((path, _content(path)) for path in lists)
    listed = len(keys_of(files))
    digests = {storage.name(path): digest for path, digest in files}
    choose = partial(_choose_listed, parent, files)
    made = make_run.make(Making("subset", {"keys": digests}, (parent,), choose), run, _options(run, flags))
    pairs = storage.read_json(made.path("summary.json"))["pairs"]
    if pairs < listed:
        said = f"{f'{listed:,} listed'}, and {pairs:,} pairs of them in the run"
        terminal.stderr().print(terminal.shown(said), soft_wrap=True)
    return curate.show(made)


def _content(path: str) -> str:
    try:
        return content(path)
    except OSError as error:
        raise UsageError(
            f"--list {path}: cannot be read ({error.strerror or error}); give the path of a list"
        ) from None


def _choose_listed(parent: Parent, lists: Files, run: Run, unit: ShardOfParent) -> ChosenFacts:
    rows = units.samples_of(*of_unit((parent,), unit["name"]))
    keys: Any = rows["key"]
    listed = keys_of(lists)
    uids = pa.array([_uid(extra) for extra in parquet.values(rows, "extra")], pa.string())
    by_key, by_uid = choose_rows.unlisted(keys, listed), choose_rows.unlisted(pa.chunked_array([uids]), listed)
    is_unlisted = by_key.is_valid().to_numpy(zero_copy_only=False) & by_uid.is_valid().to_numpy(zero_copy_only=False)
    return choose_rows.chosen(run, unit["name"], rows, [drop_where(pa.array(is_unlisted), DropReason.NOT_LISTED)])


def _uid(extra: str | None) -> str | None:
    value = json.loads(extra).get(UID) if extra else None
    return value if isinstance(value, str) else None


@functools.lru_cache(maxsize=2)
def keys_of(files: Files) -> "pa.Array[Any]":
    """The distinct entries of lists, sorted.

    A list is text, a line each; Parquet with a column `key` or `uid`; or a .npy of DataComp: two unsigned 64-bit
    numbers an id, which are its 32 hex digits.

    Raises:
        UsageError: a list cannot be read, or has nothing.
    """
    found = set[str]()
    for path, _ in files:
        try:
            data = storage.read_bytes(path)
            found |= set(_entries(data))
        except (OSError, ValueError, KeyError, AltalignError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            said = "give keys, one a line; Parquet with a column key or uid; or a .npy of DataComp"
            raise UsageError(f"--list {path}: cannot be read as a list of keys ({why}); {said}") from None
    if not found:
        raise UsageError(f"--list {', '.join(path for path, _ in files)}: nothing is listed; write one key a line")
    return pa.array(sorted(found), pa.string())


def _entries(data: bytes) -> list[str]:
    if data.startswith(_NPY):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if array.dtype.names is None or len(array.dtype.names) != 2:
            raise ValueError(f"an array of {array.dtype}, not of two uint64 an id")
        high, low = (array[name].tolist() for name in array.dtype.names)
        return [f"{first:016x}{second:016x}" for first, second in zip(high, low, strict=True)]
    if data.startswith(_PARQUET):
        table = pq.read_table(pa.BufferReader(data))
        name = "key" if "key" in table.column_names else UID
        return [str(value) for value in table[name].drop_null().to_pylist()]
    return [line.strip().lower() for line in data.decode("utf-8-sig").splitlines() if line.strip()]


# Shares --------------------------------------------------------------------------------------------------------------


def split(
    parent: Parent, configs: Sequence[CurateConfig], shares: Sequence[Fraction], above: float, flags: list[str]
) -> int:
    """Make a run of each share: pairs of an image, and images nearer to each other than a cosine, go together."""
    groups = shard_images.groups(parent.folder, embedder=parent.config.decontaminate.embedder, above=above)
    ends = [sum(shares[: number + 1], Fraction(0)) for number in range(len(shares))]
    code = 0
    for number, config in enumerate(configs):
        begin = ends[number] - shares[number]
        settings = {"share": str(shares[number]), "from": str(begin), "similarity_above": above}
        choose = partial(_choose_share, parent, groups, (begin, ends[number]))
        run = Run(config.run.folder, config, ())
        make_run.make(Making("split", settings, (parent,), choose), run, _options(run, flags))
        code = curate.show(run) or code
    return code


def _choose_share(
    parent: Parent, groups: Mapping[str, str], share: tuple[Fraction, Fraction], run: Run, unit: ShardOfParent
) -> ChosenFacts:
    rows = units.samples_of(*of_unit((parent,), unit["name"]))
    places = (place_of(groups.get(image, image)) for image in parquet.values(rows, "image_id"))
    is_other = [not share[0] <= place < share[1] for place in places]
    return choose_rows.chosen(
        run, unit["name"], rows, [drop_where(pa.array(is_other, pa.bool_()), DropReason.NOT_LISTED)]
    )


@functools.lru_cache(maxsize=4_096)
def place_of(group: str) -> Fraction:
    """Where a group is among all, of 1: by a hash that nothing else uses, so that no other choice depends on it."""
    return Fraction(int.from_bytes(blake2b(group.encode(), digest_size=8, person=b"split").digest(), "big"), 1 << 64)


def _options(run: Run, flags: list[str]) -> Any:
    return options(run.config.engine, flags)
