"""`--to hub`: another form's folder, with the metadata that the Hugging Face Hub reads of a card."""

from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from altalign.eval.settings import TASKS
from altalign.train.exchange import to_align
from altalign.train.exchange.encoders import Trained

NOTE = "give README.md a licence, then `hf upload OWNER/NAME DIR` publishes the folder (package huggingface_hub)"


def form_of(trained: Trained) -> str:
    """The form that the folder has: AlignModel's where it holds the model, else graphs."""
    return "onnx" if to_align.unfit(trained) else "align"


def metadata(library: str, name: str, facts: Mapping[str, Any]) -> str:
    """The card's metadata as YAML, with what was measured; `facts` are those of `lineage`."""
    results = [
        EvalResult(task, each, each, metric, round(values[metric], 2), metric_name=metric)
        for each, values in facts["metrics"].items()
        if (task := each.partition("/")[0]) in TASKS
        for metric in TASKS[task].metrics
        if metric in values
    ]
    data = ModelCardData(
        model_name=name,
        library_name={"onnxruntime": "onnx"}.get(library, library),
        pipeline_tag="zero-shot-image-classification",
        tags=["image-text", "altalign"],
        eval_results=results or None,
    )
    return data.to_yaml()
