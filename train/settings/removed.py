"""Settings of earlier versions, which the settings of their runs still name."""

from collections.abc import Mapping
from typing import Any

_TAKE_IT_OUT = "take it out"
# SECTION.SETTING: the value that every training has now, and what to do about another.
_REMOVED: Mapping[str, tuple[object, str]] = {
    "data.same_image_once_a_batch": (False, 'write sampling = "distinct_images"'),
    "data.scaled_decoding": (False, 'write decoding = "scaled"'),
    "data.decode_on": ("workers", 'write decoding = "device"'),
    "tokenizer.strip_accents": (False, "give a tokenizer.json that does so in file"),
    "tokenizer.captions_at_most": (20_000_000, _TAKE_IT_OUT),
    "image_tower.batch_norm_epsilon": (1e-3, _TAKE_IT_OUT),
    "loss.block": (2048, _TAKE_IT_OUT),
    "noise.batch": (0, "give `altalign nlip noise --batch`, or [loop] global_batch"),
    "captioner.contrastive_text": ("caption", _TAKE_IT_OUT),
    "captioner.text_feature": ("encoder", _TAKE_IT_OUT),
    "captioner.decoding": ("beam", _TAKE_IT_OUT),
    "captioner.nucleus": (0.9, _TAKE_IT_OUT),
    "captioner.words_at_least": (5, _TAKE_IT_OUT),
    "optimizer.momentum": (0.9, "write beta1, which SGD and LARS read as their momentum"),
    "loop.memory_bytes": (0, "give a number of pairs in chunk"),
    "loop.search_convolutions": (True, _TAKE_IT_OUT),
    "loop.activation_checkpointing": (False, 'write recompute = "all"'),
    "loop.checkpointed_stages": (0, 'write recompute = "large"'),
    "loop.compile": (False, 'write speed = "compiled"'),
    "loop.cuda_graphs": (False, 'write speed = "recorded"'),
}


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a settings file without settings that were removed, where these say what holds now.

    Raises:
        ValueError: one says something else; the message names it, and what to do.
    """
    kept = dict(values)
    for name, (now, advice) in _REMOVED.items():
        section, setting = name.split(".")
        table = kept.get(section)
        if not isinstance(table, Mapping) or setting not in table:
            continue
        if (value := table[setting]) != now:
            raise ValueError(f"[{section}] {setting} = {value!r}: there is no such setting any more; {advice}")
        kept[section] = {other: value for other, value in table.items() if other != setting}
    return kept
