"""What a scorer is: a function from a batch of samples to columns, and what it wants to have of their images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UsageError
from altalign.storage import parquet

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, 3], RGB, upright and on white
Floats = npt.NDArray[np.float32]
Prepare = Callable[[Pixels], Any]


@dataclass
class Batch:
    """Some samples of a shard, in order; those of an image are together.

    Attributes:
        rows: columns of `SAMPLE`.
        image_of: the number of each row's image, int64[n].
        images: what was prepared of each image, by the names of preparations; None of one that cannot be decoded.
        made: what scorers have made of this batch for one another, such as embeddings.
    """

    rows: pa.Table
    image_of: npt.NDArray[np.int64]
    images: Sequence[Mapping[str, Any] | None] = ()
    made: dict[Any, Any] = field(default_factory=dict)

    @property
    def captions(self) -> pa.StringArray:
        """The captions, without nulls."""
        return parquet.strings(self.rows, "caption")


@dataclass(frozen=True)
class Scorer:
    """One score.

    Attributes:
        name: as the settings have it.
        columns: its values.
        rests_on: all that the values depend on beside the samples: settings, digests of files, versions.
        measure: a column for each of `columns`, of as many rows as the batch; nulls where there is no value.
        reads: the columns of `SAMPLE` that it looks at; None: any.
        prepares: what is made of the pixels of each image, by name; equal names are made once for all scorers.
    """

    name: str
    columns: pa.Schema
    rests_on: Mapping[str, Any]
    measure: Callable[[Batch], Sequence["pa.Array[Any]"]]
    prepares: Mapping[str, Prepare] = field(default_factory=dict)
    reads: Sequence[str] | None = None


def read(path: str, where: str) -> bytes:
    """A file that the settings name, whole.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return storage.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{where}: {path}: no such file; give a path relative to the working directory") from None
    except OSError as error:
        raise UsageError(f"{where}: {path}: cannot be read ({error.strerror or error})") from None


def named(name: str, columns: pa.Schema) -> pa.Schema:
    """The columns as files have them: `NAME_COLUMN`."""
    return pa.schema([pa.field(f"{name}_{each.name}", each.type) for each in columns])


def without_nan(values: npt.NDArray[np.floating]) -> "pa.Array[Any]":
    """Values as float32, those that are not finite as null."""
    return pa.array(values.astype(np.float32), mask=~np.isfinite(values))
