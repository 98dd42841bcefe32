"""What `altalign.open` returns: a run, finished or under way, whose files are read when they are needed."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.schema import COUNTS
from altalign.data.stages import own_files

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from altalign.audit.find_pairs import Explanation
    from altalign.audit.opened.readers import Pairs
    from altalign.audit.opened.shown import Gallery


class Run:
    """A run: its counts, its settings, its samples and what it dropped.

    It is shown as its funnel; in a notebook, with some of the samples. What is wrong with a run is raised as it is
    everywhere in altalign: `altalign.errors` has the exceptions.

    Attributes:
        folder: where the run is.
    """

    def __init__(self, run: RunFolder):
        self._run, self.folder = run, run.folder

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
            return run_parquet.table(self._run.path("counts.parquet"), COUNTS)

    def samples(self) -> "ds.Dataset":
        """The rows of the side-cars, lazily: columns of `schema.SAMPLE`, and `shard`, the name of the tar.

        A dataset of Arrow.

        Raises:
            UsageError: the run is not finished.
            DamagedError: the manifest is damaged.
        """
        from altalign.audit.opened import scans

        with own_files(self.folder):
            return scans.samples(self._run)

    def dropped(self, *reasons: str) -> "ds.Dataset":
        """The rows that were dropped for one of these reasons (none: for any), lazily: columns of `schema.DROPPED`.

        Of what `extract` drops only a sample was kept, but for broken records; `counts` are of all.

        Raises:
            UsageError: there is no such reason, or the run kept no dropped rows.
        """
        from altalign.audit.opened import scans

        with own_files(self.folder):
            return scans.dropped(self._run, reasons)

    def images(self, rows: object) -> Iterator[bytes]:
        """The bytes of the images of some samples, in order; many at a time of an object store.

        Args:
            rows: a table, batch or data frame with the columns `shard`, `tar_offset` and `tar_bytes` of `samples()`.

        Raises:
            DamagedError: a tar is not there, or ends before its image does.
        """
        from altalign.audit.opened import scans

        return scans.images(self._run, rows)

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
        from altalign.audit import find_pairs

        with own_files(self.folder):
            return find_pairs.explain(self._run, url=url, text=text, key=key, source_key=source_key)

    def gallery(self, reason: str = "kept") -> "Gallery":
        """Samples of what a reason dropped, or of what was kept, with a thumbnail where an image was in hand.

        Raises:
            UsageError: there is no such reason, or the run is not finished.
        """
        from altalign.audit.opened import shown

        with own_files(self.folder):
            return shown.gallery(self._run, reason)

    def to_torch(
        self, prepare: "Callable[[Any], object] | None" = None, *, where: "pc.Expression | None" = None
    ) -> "Pairs":
        """The samples by number, as `torch.utils.data.DataLoader` takes them: (image, caption).

        Args:
            prepare: what becomes of an image (PIL, RGB, upright), such as transforms of torchvision; None: nothing.
            where: a condition on the columns of `samples()`; None: all.

        Raises:
            UsageError: the run is not finished.
        """
        from altalign.audit.opened import readers

        with own_files(self.folder):
            return readers.Pairs.of(self._run, prepare, where)

    def to_hf(self, *, where: "pc.Expression | None" = None) -> "datasets.IterableDataset":
        """The samples as an `IterableDataset` of Hugging Face `datasets`: the columns of `samples()`, and `image`.

        Args:
            where: a condition on the columns of `samples()`; None: all.

        Raises:
            UsageError: the run is not finished, or `datasets` is not installed.
        """
        from altalign.audit.opened import readers

        with own_files(self.folder):
            return readers.hugging_face(self._run, where)

    def __repr__(self) -> str:
        from altalign.audit.opened import shown

        with own_files(self.folder):
            return shown.text(self._run)

    def _repr_html_(self) -> str:
        from altalign.audit.opened import shown

        with own_files(self.folder):
            return shown.html(self._run)
