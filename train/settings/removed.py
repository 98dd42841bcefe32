"""Settings of trainings of earlier versions, which the settings of their runs still name."""

from collections.abc import Mapping
from typing import Any

from altalign.settings.common import TAKE_IT_OUT, Removed, without_removed

_REMOVED: Removed = {
    "data.same_image_once_a_batch": (False, 'write sampling = "distinct_images"'),
    "data.scaled_decoding": (False, 'write decoding = "scaled"'),
    "data.decode_on": ("workers", 'write decoding = "device"'),
    "tokenizer.strip_accents": (False, "give a tokenizer.json that does so in file"),
    "tokenizer.captions_at_most": (20_000_000, TAKE_IT_OUT),
    "image_tower.batch_norm_epsilon": (1e-3, TAKE_IT_OUT),
    "image_tower.drop_path": (0.0, TAKE_IT_OUT),
    "loss.block": (2048, TAKE_IT_OUT),
    "noise.batch": (0, "give `altalign nlip noise --batch`, or [loop] global_batch"),
    "captioner.prompt": ("a picture of", TAKE_IT_OUT),
    "captioner.contrastive_text": ("caption", TAKE_IT_OUT),
    "captioner.text_feature": ("encoder", TAKE_IT_OUT),
    "captioner.decoding": ("beam", TAKE_IT_OUT),
    "captioner.nucleus": (0.9, TAKE_IT_OUT),
    "captioner.words_at_least": (5, TAKE_IT_OUT),
    "optimizer.momentum": (0.9, "write beta1, which SGD and LARS read as their momentum"),
    "optimizer.clip_norm": (0.0, TAKE_IT_OUT),
    "schedule.factor": (0.2, TAKE_IT_OUT),
    "evaluation.batch": (256, TAKE_IT_OUT),
    "sweep.runs": (3, TAKE_IT_OUT),
    "sweep.seed": (0, "write seed in [run]"),
    "loop.memory_bytes": (0, "give a number of pairs in chunk"),
    "loop.search_convolutions": (True, TAKE_IT_OUT),
    "loop.activation_checkpointing": (False, 'write recompute = "all"'),
    "loop.checkpointed_stages": (0, 'write recompute = "large"'),
    "loop.compile": (False, 'write speed = "compiled"'),
    "loop.cuda_graphs": (False, 'write speed = "recorded"'),
}


def of_this_version(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a settings file without settings that were removed; two that one took the place of are in it.

    Raises:
        ValueError: a removed setting says something else than what holds now; the message names it, and what to do.
    """
    kept = without_removed(values, _REMOVED)
    if data := _section_with(kept, "data", ("tars", "tables")):
        tars, tables = data.pop("tars", []), data.pop("tables", [])
        kept["data"] = {**data, "files": [*data.get("files", []), *tars, *tables]}
    if loss := _section_with(kept, "loss", ("temperature_at_least", "temperature_at_most")):
        bounds = [loss.pop("temperature_at_least", 1e-6), loss.pop("temperature_at_most", 1e6)]
        kept["loss"] = {**loss, "temperature_range": bounds}
    return kept


def _section_with(values: Mapping[str, Any], section: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A copy of a section that has one of these settings at least; else nothing."""
    table = values.get(section)
    return dict(table) if isinstance(table, Mapping) and any(name in table for name in names) else {}
