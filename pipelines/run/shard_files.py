"""Writes the two files of a shard, its tar and its side-car, and says what they are."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.shards import ShardWriter, table_of, write_sidecar
from altalign.pipelines.run.tables.written import ShardFacts
from altalign.storage import parquet

_HEADER_BYTES, _END_BYTES = 512, 1024  # before an image, and after the last sample


def write_shard(folder: str, name: str, samples: Iterable[tuple[Mapping[str, object], bytes]]) -> ShardFacts:
    """Write `NAME.tar` and `NAME.parquet` in the folder of shards, from rows of `SAMPLE` and their images, in order.

    The tar says where each image begins, whatever `tar_offset` a row brings.

    Raises:
        ValueError: there are no samples, or as `ShardWriter.write`.
    """
    return write_files(folder, name, lambda shard: table_of(shard.write(image, row) for row, image in samples))


def write_files(folder: str, name: str, fill: Callable[[ShardWriter], pa.Table]) -> ShardFacts:
    """The same, where `fill` writes at least one sample, and gives the side-car."""
    tar_path, parquet_path = (storage.join(folder, f"{name}.{ending}") for ending in ("tar", "parquet"))
    of_tar: Callable[[], storage.Written] = lambda: storage.Written(shard.bytes, shard.sha256)  # noqa: E731
    with storage.write(tar_path, written=of_tar) as file:
        shard = ShardWriter(file)
        rows = fill(shard)
        shard.end()
    with storage.write(parquet_path, written=lambda: sidecar.written) as file:
        sidecar = storage.Hashed(file)
        write_sidecar(rows, cast(BinaryIO, sidecar))
    images = parquet.strings(rows, "image_id")
    return ShardFacts(
        rows=len(rows),
        bytes=shard.bytes,
        source_bytes=dict(sorted(source_bytes(rows, shard.bytes).items())),
        sha256=shard.sha256,
        parquet_bytes=sidecar.written.bytes,
        parquet_sha256=sidecar.written.digest,
        images=len(images.unique()),
        first_image=images[0].as_py(),
        last_image=images[-1].as_py(),
    )


def source_bytes(rows: pa.Table, tar_bytes: int) -> Counter[str]:
    """The bytes that the samples of each source have in a tar: from the header of an image to that of the next."""
    found = Counter[str]()
    for source, of_sample in zip(
        parquet.values(rows, "source"), np.diff(starts(rows, tar_bytes)).tolist(), strict=True
    ):
        found[source] += of_sample
    return found


def starts(rows: pa.Table, tar_bytes: int) -> npt.NDArray[np.int64]:
    """Where each of n samples begins in a tar of so many bytes, and where the last one ends: int64[n + 1]."""
    return np.append(rows["tar_offset"].to_numpy() - _HEADER_BYTES, tar_bytes - _END_BYTES)
