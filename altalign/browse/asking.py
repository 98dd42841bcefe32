"""Searches of Python programs and of `altalign search`: tables of pairs."""

import io
import os
import re
import sys
import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import ImageOps

from altalign import storage, terminal
from altalign.audit import notebook
from altalign.audit.run_folder import RunFolder
from altalign.browse.pair import Pictures
from altalign.browse.pairs import opened, renamed
from altalign.browse.search import WORDS, searching
from altalign.errors import AltalignError, UsageError

_VALUES, _PICTURE = ("cosine", "share_of_words"), "picture"
_SHOWN = {"caption", "key", "reason", "nsfw_score", _PICTURE}  # by a notebook
_OF_PNG = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")  # modes of Pillow
_NSFW_FROM = "altalign.nsfw_from"  # in the metadata of a table that a search has made: pictures from here are blurred


class Asking:
    """A run that is searched; its pairs and embeddings are read once."""

    def __init__(self, run: RunFolder):
        stack = ExitStack()
        weakref.finalize(self, stack.close)
        self._pairs = stack.enter_context(opened(run))
        self._search = stack.enter_context(searching(self._pairs))
        self._pictures = Pictures(self._pairs)
        self.notes = self._search.notes

    def search(
        self,
        *,
        text: str,
        image: object,
        key: str,
        minus: str,
        where: str,
        k: int,
        embedding: str,
        with_pictures: bool = True,
    ) -> pa.Table:
        """The pairs that are nearest, as `Run.search` has them."""
        if k < 1:
            raise UsageError(f"k = {k}: give 1 or more")
        pairs, search = self._pairs, self._search
        terminal.await_thread(pairs.is_over, "reading", pairs.total, "pairs", lambda: pairs.read)
        terminal.await_thread(search.is_over, "indexing", search.total, "embeddings", lambda: search.done)
        if self._pairs.trouble:
            raise AltalignError(f"the run cannot be searched: {self._pairs.trouble}")
        terms = list[dict[str, Any]]()
        terms += [{"text": text}] if text else []
        terms += [{"text": minus, "minus": True}] if minus else []
        if isinstance(image, str) and re.match("https?://", image, re.IGNORECASE):
            terms.append({"url": image})
        elif image is not None:
            terms.append({"picture": self._search.keep(_bytes(image))})
        terms += [{"pair": key.lower()}] if key else []
        if not terms:
            raise UsageError("nothing to search for; give a text, an image or a key")
        nearest = self._search.nearest(self._pairs.condition(where), {"terms": terms, "with": embedding}, k)
        numbers = nearest.numbers.tolist()
        rows = self._pairs.table(numbers).drop_columns(["n"])
        # a score may be called `cosine`
        rows = rows.rename_columns(list(renamed(rows.column_names, {*_VALUES, _PICTURE}).values()))
        value = _VALUES[nearest.by == WORDS]
        table = rows.add_column(0, value, pa.array(np.asarray(nearest.values), pa.float32()))
        if not with_pictures:
            return table
        shown = zip(numbers, rows.select(["reason", "key"]).to_pylist(), strict=True)
        pictures = [self._pictures.of(number) if self._pictures.has(row) else None for number, row in shown]
        _show_in_notebook()
        table = table.append_column(_PICTURE, pa.array(pictures, pa.binary()))
        return table.replace_schema_metadata({_NSFW_FROM: str(self._pairs.run.config.image.nsfw.drop_at_or_above)})


def _show_in_notebook() -> None:
    """Have a notebook show pictures of the tables that searches make, and others as before."""

    def html(table: pa.Table) -> str | None:
        nsfw_from = (table.schema.metadata or {}).get(_NSFW_FROM.encode())
        first, *others = table.column_names or [""]
        if nsfw_from is None or first not in _VALUES or not {*others} >= _SHOWN:  # perhaps of what was made of such one
            return None
        return notebook.pairs(table, nsfw_from=float(nsfw_from))

    ipython: Any = sys.modules.get("IPython")
    if ipython and (shell := ipython.get_ipython()):
        shell.display_formatter.formatters["text/html"].for_type(pa.Table, html)


def _bytes(image: Any) -> bytes:
    """The bytes of an image: a path, its bytes, or an image of Pillow."""
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if hasattr(image, "save"):
        file = io.BytesIO()
        upright = ImageOps.exif_transpose(image)
        (upright if upright.mode in _OF_PNG else upright.convert("RGB")).save(file, "PNG")
        return file.getvalue()
    if not isinstance(image, str | os.PathLike):
        raise UsageError(f"image: {type(image).__name__}; give a path, a URL of the run, bytes, or an image of Pillow")
    path = os.fspath(image)
    storage.check(path)
    if not storage.exists(path):
        raise UsageError(f"image {path}: no such file")
    return storage.read_bytes(path)
