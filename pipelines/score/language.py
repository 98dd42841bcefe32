"""The language of captions, by a model file of fastText: label, probability, and margin to the second label."""

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.errors import UsageError
from altalign.filters import fasttext_files, languages, text_scores
from altalign.filters.fasttext import Predictor
from altalign.pipelines.score.scorer import Batch, Scorer, read, without_nan
from altalign.scoring import ScoreSettings

UNKNOWN = "und"  # of BCP 47: undetermined


def language(of: ScoreSettings, where: str) -> Scorer:
    """Label, probability and margin of captions; a label that is too near to the next, or vetoed, is `und`."""
    digest = hashlib.sha256(read(of.model, f"{where} model")).hexdigest()
    predictor = _predictor(of.model, digest)
    names = pa.array([*predictor.model.labels, UNKNOWN], pa.string())
    unknown = len(names) - 1

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        captions = batch.captions
        found = predictor.predict(captions)
        margin = text_scores.rounded((found.first - found.second).astype(np.float64))
        label = np.where((found.label < 0) | (margin < of.margin_at_least), unknown, found.label)
        if of.script_veto:
            label = np.where(languages.is_vetoed(captions, names.take(label)), unknown, label)
        is_number = np.isfinite(found.first)
        labels: Any = pc.if_else(pa.array(is_number), names.take(label), pa.scalar(None, pa.string()))
        return [labels, without_nan(text_scores.rounded(found.first.astype(np.float64))), without_nan(margin)]

    columns = pa.schema(
        [(of.name, pa.string()), (f"{of.name}_probability", pa.float32()), (f"{of.name}_margin", pa.float32())]
    )
    rests_on = {
        "model": digest,
        "margin_at_least": of.margin_at_least,
        "script_veto": of.script_veto,
    }
    return Scorer(of.name, columns, rests_on, measure, reads=("caption",))


@lru_cache(maxsize=2)
def _predictor(path: str, _digest: str) -> Predictor:
    try:
        return Predictor(fasttext_files.read(storage.read_bytes(path)))
    except fasttext_files.ModelFileError as error:
        raise UsageError(
            f"{path}: no model of fastText: {error}; give a classifier that it saved (.bin or .ftz)"
        ) from None
