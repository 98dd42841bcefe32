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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data.reasons import DropReason, drop_where
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.derive import choose_rows
from altalign.pipelines.derive.make_run import Making, make
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.near import shard_images
from altalign.pipelines.run.shard_tables import ChosenFacts, ShardOfParent
from altalign.pipelines.run.units import Run, content
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

Files = tuple[tuple[str, str], ...]  # paths, and SHA-256 of what is in them: a process keeps the keys of a list
UID = "uid"  # of DataComp's pools, where it is kept as a column


# A list of keys ------------------------------------------------------------------------------------------------------


def subset(parent: Parent, run: Run, lists: Sequence[str], flags: list[str]) -> int:
    """Make a run of the pairs whose key, or whose `uid` among the kept columns, the lists have."""
    files: Files = ()
    for path in lists:
        try:
            files += ((path, content(path)),)
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"--list {path}: cannot be read ({why}); give the path of a list") from None
    listed = len(keys_of(files))
    digests = {storage.name(path): digest for path, digest in files}
    choose = partial(choose_listed, parent, files)
    made = make(Making("subset", {"keys": digests}, (parent,), choose), run, flags)
    pairs = storage.read_json(made.path("summary.json"))["pairs"]
    if pairs < listed:
        message = f"{listed:,} listed, and {pairs:,} pairs of them in the run"
        terminal.stderr().print(terminal.shown(message), soft_wrap=True)
    return curate.show(made)


def choose_listed(parent: Parent, lists: Files, run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Decide the samples of a unit: those that no list has go."""
    rows, listed = parent.samples(of_unit((parent,), unit["name"])[1]), keys_of(lists)
    extras = (json.loads(extra).get(UID) if extra else None for extra in parquet.values(rows, "extra"))
    uids = pa.array([uid if isinstance(uid, str) else None for uid in extras], pa.string())
    keys: Any = rows["key"]
    is_listed: Any = pc.or_(pc.is_in(keys.combine_chunks(), value_set=listed), pc.is_in(uids, value_set=listed))
    return choose_rows.chosen(run, unit["name"], rows, [drop_where(pc.invert(is_listed), DropReason.NOT_LISTED)])


@functools.lru_cache(maxsize=2)
def keys_of(files: Files) -> "pa.Array[Any]":
    """The distinct entries of lists, sorted.

    A list is text, a line each; Parquet with a column `key` or `uid`; or a .npy of DataComp: two unsigned 64-bit
    numbers an id, which are its 32 hex digits.
    """
    keys = set[str]()
    for path, _ in files:
        try:
            keys |= set(_entries(storage.read_bytes(path)))
        except (OSError, ValueError, KeyError, AltalignError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            repair = "give keys, one a line; Parquet with a column key or uid; or a .npy of DataComp"
            raise UsageError(f"--list {path}: cannot be read as a list of keys ({why}); {repair}") from None
    if not keys:
        raise UsageError(f"--list {', '.join(path for path, _ in files)}: nothing is listed; write one key a line")
    return pa.array(sorted(keys), pa.string())


def _entries(data: bytes) -> list[str]:
    if data.startswith(b"\x93NUMPY"):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if array.dtype.names is None or len(array.dtype.names) != 2:
            raise ValueError(f"an array of {array.dtype}, not of two uint64 an id")
        high, low = (array[name].tolist() for name in array.dtype.names)
        return [f"{first:016x}{second:016x}" for first, second in zip(high, low, strict=True)]
    if data.startswith(b"PAR1"):
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
    code, begin = 0, Fraction(0)
    for config, share in zip(configs, shares, strict=True):
        settings = {"share": str(share), "from": str(begin), "similarity_above": above}
        choose = partial(_choose_share, parent, groups, (begin, begin + share))
        run = make(Making("split", settings, (parent,), choose), Run(config.run.folder, config, ()), flags)
        code, begin = curate.show(run) or code, begin + share
    return code


def _choose_share(
    parent: Parent, groups: Mapping[str, str], share: tuple[Fraction, Fraction], run: Run, unit: ShardOfParent
) -> ChosenFacts:
    rows = parent.samples(of_unit((parent,), unit["name"])[1])
    places = (place_of(groups.get(image, image)) for image in parquet.values(rows, "image_id"))
    is_other = pa.array([not share[0] <= place < share[1] for place in places], pa.bool_())
    return choose_rows.chosen(run, unit["name"], rows, [drop_where(is_other, DropReason.NOT_LISTED)])


@functools.lru_cache(maxsize=4_096)
def place_of(group: str) -> Fraction:
    """Where a group is among all, of 1: by a hash that nothing else uses, so that no other choice depends on it."""
    return Fraction(int.from_bytes(blake2b(group.encode(), digest_size=8, person=b"split").digest(), "big"), 1 << 64)
