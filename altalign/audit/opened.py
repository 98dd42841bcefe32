"""What `altalign.open` returns: a run, finished or under way, whose files are read when they are needed.

As Arrow, nothing is read before a scan, and then only what it asks for; as data sets of PyTorch and of Hugging Face.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import REASONS, Stage
from altalign.data.schema import COUNTS, DROPPED, SAMPLE
from altalign.data.stages import own_files
from altalign.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]

    from altalign.audit.explain import Explanation
    from altalign.audit.notebook import Gallery
    from altalign.browse.asking import Asking

_OF_SHARDS = SAMPLE.append(pa.field("shard", pa.string()))


class Run:
    """A run: its counts, its settings, its samples and what it dropped.

    It is shown as its funnel; in a notebook, with some of the samples. What is wrong with a run is raised as it is
    everywhere in altalign: `altalign.errors` has the exceptions.

    Attributes:
        folder: where the run is.
    """

    def __init__(self, run: RunFolder):
        self._run, self.folder = run, run.folder
        self._asking: Asking | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asking": None}  # a search has a database and threads, which workers do not take

    @classmethod
    def open(cls, folder: str) -> "Run":
        """Opens a run folder.

        Raises:
            UsageError: there is no such folder, or it is not a run.
            DamagedError: run.json is damaged.
            StoreError: its object store does not answer.
        """
        with own_files(folder):
            return cls(RunFolder.open(folder))

    def __fspath__(self) -> str:
        return self.folder

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        return self._run.is_finished

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as resolved, by section, a new dict each time, which `altalign.curate` takes.

        Raises:
            DamagedError: config.toml is damaged.
        """
        settings = self._run.settings
        return {**settings, "run": {"folder": self.folder, **settings.get("run", {})}}

    @cached_property
    def counts(self) -> pa.Table:
        """Rows by stage, source and reason; the reason of a row that stays is "kept". Columns of `schema.COUNTS`.

        Raises:
            UsageError: the run is not finished.
            DamagedError: counts.parquet is damaged.
        """
        self._run.check_finished("it has no counts yet")
        with own_files(self.folder):
            return run_rows.table(self._run.path("counts.parquet"), COUNTS)

    def samples(self) -> ds.Dataset:
        """The rows of the side-cars, lazily: columns of `schema.SAMPLE`, and `shard`, the name of the tar.

        A dataset of Arrow.

        Raises:
            UsageError: the run is not finished.
            DamagedError: the manifest is damaged.
        """
        with own_files(self.folder):
            names = self._shards()
            paths = [self._run.path("shards", f"{name.removesuffix('.tar')}.parquet") for name in names]
            # `shard` is known of each file before it is opened
            return self._dataset(paths, _OF_SHARDS, [pc.field("shard") == name for name in names])

    def dropped(self, *reasons: str) -> ds.Dataset:
        """The rows that were dropped for one of these reasons (none: for any), lazily: columns of `schema.DROPPED`.

        Of what `extract` drops only a sample was kept, but for broken records; `counts` are of all.

        Raises:
            UsageError: there is no such reason, or the run kept no dropped rows.
        """
        with own_files(self.folder):
            if self._run.settings.get("audit", {}).get("keep_dropped") is False:
                why = "it kept no dropped rows ([audit] keep_dropped = false)"
                raise UsageError(f"{self.folder}: {why}; its counts are exact")
            names = {run_rows.check_reason(reason) for reason in reasons}
            stages = [stage for stage in run_rows.STAGES if not names or {*REASONS[Stage(stage)]} & names]
            folders = [self._run.path("dropped", stage) for stage in stages]
            paths = [storage.join(folder, name) for folder in folders for name in storage.names(folder, ".parquet")]
            rows = self._dataset(paths, DROPPED)
            return rows.filter(pc.field("reason").isin(sorted(names))) if names else rows

    def images(self, rows: object) -> Iterator[bytes]:
        """The bytes of the images of some samples, in order; many at a time of an object store.

        Args:
            rows: a table, batch or data frame with the columns `shard`, `tar_offset` and `tar_bytes` of `samples()`.

        Raises:
            DamagedError: a tar is not there, or ends before its image does.
        """
        table: Any = rows
        places = pa.table(table).select(["shard", "tar_offset", "tar_bytes"]).to_pylist()

        def read(place: Mapping[str, Any]) -> bytes:
            return run_rows.image(self._run, place["shard"], place["tar_offset"], place["tar_bytes"])

        with own_files(self.folder):
            yield from storage.each(read, places, place=self.folder)

    def explain(
        self, *, url: str | None = None, text: str | None = None, key: str | None = None, source_key: str | None = None
    ) -> "Explanation":
        """What happened to a pair in every stage, and why, as `altalign explain` says it.

        Args:
            url: the image's URL; or
            text: the caption; or
            key: the pair's key, or its image_id: 32 hex digits.
            source_key: its name in the input: `FILE#ROW` of a table, `FILE#SAMPLE` of a tar, or the path in a folder.

        Raises:
            NotFoundError: the run has no such pair.
            UsageError: not exactly one is given, or the key is none.
        """
        from altalign.audit import explain

        with own_files(self.folder):
            return explain.explain(self._run, url=url, text=text, key=key, source_key=source_key)

    def gallery(self, reason: str = "kept") -> "Gallery":
        """Samples of what a reason dropped, or of what was kept, with a thumbnail where an image was in hand.

        Raises:
            UsageError: there is no such reason, or the run is not finished.
        """
        from altalign.audit import notebook

        with own_files(self.folder):
            return notebook.gallery(self._run, reason)

    def search(
        self,
        text: str = "",
        *,
        image: object = None,
        key: str = "",
        minus: str = "",
        where: str = "",
        k: int = 20,
        embedding: str = "",
    ) -> pa.Table:
        """The pairs, kept and dropped, whose images are nearest to texts and pictures; a notebook shows the pictures.

        Args:
            text: what images show; where no embedding of the run takes text, words of captions.
            image: what they are like: a path, bytes, an image of Pillow, or the URL of one of the run.
            key: the pair whose image they are like.
            minus: a text that they are unlike.
            where: a condition as of `altalign select`, also on `stage` and `reason`.
            k: how many pairs at most.
            embedding: the name of a score of kind "embedding"; empty: one that takes text, if there is one.

        Returns:
            `cosine` (or `share_of_words`), the columns of the pairs with those of scores, and `picture`, WebP.

        Raises:
            UsageError: there is nothing to search for, or the run has no embeddings for it.
        """
        from altalign.browse.asking import Asking

        with own_files(self.folder):
            self._asking = self._asking or Asking(self._run)
            return self._asking.search(
                text=text, image=image, key=key, minus=minus, where=where, k=k, embedding=embedding
            )

    def to_torch(
        self, prepare: Callable[[Any], object] | None = None, *, where: pc.Expression | None = None
    ) -> "Pairs":
        """The samples by number, as `torch.utils.data.DataLoader` takes them: (image, caption).

        Args:
            prepare: what becomes of an image (PIL, RGB, upright, on white, of the first frame), such as transforms of
                torchvision; None: nothing.
            where: a condition on the columns of `samples()`; None: all.

        Raises:
            UsageError: the run is not finished.
            UnreadableError: an image, when it is asked for, is damaged.
        """
        with own_files(self.folder):
            columns = ["shard", "tar_offset", "tar_bytes", "caption"]
            return Pairs(self.samples().to_table(columns, filter=where), self, prepare)

    def to_hf(self, *, where: pc.Expression | None = None) -> "datasets.IterableDataset":
        """The samples as an `IterableDataset` of Hugging Face `datasets`: the columns of `samples()`, and `image`.

        Args:
            where: a condition on the columns of `samples()`; None: all.

        Raises:
            UsageError: the run is not finished, or `datasets` is not installed.
        """
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UsageError("the package datasets is not installed: pip install datasets") from None

        features = datasets.Features.from_arrow_schema(_OF_SHARDS)
        features["image"] = datasets.Image()
        with own_files(self.folder):
            arguments = {"run": self, "shards": self._shards(), "where": where}
            return datasets.IterableDataset.from_generator(_pictured_rows, features=features, gen_kwargs=arguments)

    def _shards(self) -> list[str]:
        """The names of the tars, as the manifest has them."""
        self._run.check_finished("it has no samples yet")
        try:
            return [str(shard["name"]) for shard in self._run.json("manifest.json")["shards"]]
        except (KeyError, TypeError):
            raise UnreadableError(f"{self._run.path('manifest.json')}: it does not name the shards") from None

    def _dataset(
        self, paths: Sequence[str], schema: pa.Schema, partitions: list[pc.Expression] | None = None
    ) -> ds.Dataset:
        system, _ = storage.in_arrow(self.folder)
        names = [storage.in_arrow(path)[1] for path in paths]
        return ds.FileSystemDataset.from_paths(
            names, schema=schema, format=ds.ParquetFileFormat(), filesystem=system, partitions=partitions
        )

    def __repr__(self) -> str:
        from altalign.audit import notebook

        with own_files(self.folder):
            return notebook.text(self._run)

    def _repr_html_(self) -> str:
        from altalign.audit import notebook

        with own_files(self.folder):
            return notebook.html(self._run)


@dataclass(frozen=True, repr=False)
class Pairs:
    """Samples by number: what PyTorch calls a map-style dataset. It can be pickled, for workers.

    Attributes:
        rows: of each sample `caption`, and where its image is; in memory.
    """

    rows: pa.Table
    _run: Run
    _prepare: Callable[[Any], Any] | None

    def __len__(self) -> int:
        return self.rows.num_rows

    def __getitem__(self, number: int) -> tuple[Any, str]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Any, str]]:
        """Several at a time, as PyTorch asks for a batch: of an object store they are read together."""
        from PIL import Image

        from altalign.filters import pixels

        rows, pairs = self.rows.take(pa.array(numbers, pa.int64())), []
        for data, caption in zip(self._run.images(rows), rows["caption"].to_pylist(), strict=True):
            decoded = pixels.decode(data, pixels_at_most=sys.maxsize, colour=True, short_side_px=pixels.FULL_SIZE_PX)
            if decoded.pixels is None:
                raise UnreadableError(f"{self._run.folder}: the image of {caption!r} is damaged: {decoded.damage}")
            upright = Image.fromarray(decoded.pixels)
            pairs.append((upright if self._prepare is None else self._prepare(upright), str(caption)))
        return pairs

    def __repr__(self) -> str:
        return f"{len(self):,} pairs of {self._run.folder}"


def _pictured_rows(run: Run, shards: Sequence[str], where: pc.Expression | None) -> Iterator[dict[str, object]]:
    chosen = pc.field("shard").isin(list(shards))
    for batch in run.samples().to_batches(filter=chosen if where is None else chosen & where):
        for row, image in zip(batch.to_pylist(), run.images(batch), strict=True):
            yield {**row, "image": {"bytes": image, "path": None}}
