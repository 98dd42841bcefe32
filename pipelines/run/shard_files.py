"""Writes the two files of a shard, its tar and its side-car, from samples in their order."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, cast

from altalign import storage
from altalign.pipelines.run.artefacts.written import ShardFacts
from altalign.schema import SampleRow
from altalign.shards import ShardWriter, write_sidecar


def write_shard(folder: str, name: str, samples: Iterable[tuple[Mapping[str, object], bytes]]) -> ShardFacts:
    """Write `NAME.tar` and `NAME.parquet` in the folder of shards, from rows of `SAMPLE` and their images.

    The tar says where each image begins, whatever `tar_offset` a row brings.

    Raises:
        ValueError: there are no samples, or as `ShardWriter.write`.
    """
    rows, source_bytes = list[SampleRow](), Counter[str]()
    tar_path, parquet_path = (storage.join(folder, f"{name}.{ending}") for ending in ("tar", "parquet"))
    of_tar: Callable[[], storage.Written] = lambda: storage.Written(shard.bytes, shard.sha256)  # noqa: E731
    with storage.write(tar_path, found=of_tar) as file:
        shard = ShardWriter(file)
        for row, image in samples:
            before = shard.bytes
            rows.append(shard.write(image, row))
            source_bytes[rows[-1]["source"]] += shard.bytes - before
        shard.end()
    with storage.write(parquet_path, found=lambda: sidecar.written) as file:
        sidecar = storage.Hashed(file)
        write_sidecar(rows, cast(BinaryIO, sidecar))
    return ShardFacts(
        rows=len(rows),
        bytes=shard.bytes,
        source_bytes=dict(sorted(source_bytes.items())),
        sha256=shard.sha256,
        parquet_bytes=sidecar.written.bytes,
        parquet_sha256=sidecar.written.digest,
        images=len({row["image_id"] for row in rows}),
        first_image=rows[0]["image_id"],
        last_image=rows[-1]["image_id"],
    )
