"""The samples of a run for PyTorch and for Hugging Face. Importing this imports neither."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, ImageOps

from altalign.audit.opened import scans
from altalign.audit.run_folder import RunFolder
from altalign.errors import UsageError

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True, repr=False)
class Pairs:
    """Samples by number: what PyTorch calls a map-style dataset. It can be pickled, for workers.

    Attributes:
        rows: of each sample `caption`, and where its image is; in memory.
    """

    rows: pa.Table
    _run: RunFolder
    _prepare: Callable[[Any], Any] | None

    @classmethod
    def of(cls, run: RunFolder, prepare: Callable[[Any], object] | None, where: pc.Expression | None) -> "Pairs":
        """The samples of a run that a condition holds for."""
        columns = ["shard", "tar_offset", "tar_bytes", "caption"]
        return cls(scans.samples(run).to_table(columns, filter=where), run, prepare)

    def __len__(self) -> int:
        return self.rows.num_rows

    def __getitem__(self, number: int) -> tuple[Any, str]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Any, str]]:
        """Several at a time, as PyTorch asks for a batch: of an object store they are read together."""
        rows = self.rows.take(pa.array(numbers, pa.int64()))
        captions = cast(list[str], rows["caption"].to_pylist())
        return list(zip(map(self._picture, scans.images(self._run, rows)), captions, strict=True))

    def _picture(self, data: bytes) -> object:
        with Image.open(io.BytesIO(data)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        return upright if self._prepare is None else self._prepare(upright)

    def __repr__(self) -> str:
        return f"{len(self):,} pairs of {self._run.folder}"


def hugging_face(run: RunFolder, where: pc.Expression | None) -> "datasets.IterableDataset":
    """The samples as a stream, dealt out to processes and workers by shard."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError("the package datasets is not installed: pip install datasets") from None

    features = datasets.Features.from_arrow_schema(scans.OF_SHARDS)
    features["image"] = datasets.Image()
    wanted = {"run": run, "shards": scans.shards(run), "where": where}
    return datasets.IterableDataset.from_generator(_rows, features=features, gen_kwargs=wanted)


def _rows(run: RunFolder, shards: Sequence[str], where: pc.Expression | None) -> Iterator[dict[str, object]]:
    chosen = pc.field("shard").isin(list(shards))
    for batch in scans.samples(run).to_batches(filter=chosen if where is None else chosen & where):
        for row, image in zip(batch.to_pylist(), scans.images(run, batch), strict=True):
            yield {**row, "image": {"bytes": image, "path": None}}
