"""Thresholds moved together: what would stay, go and come, by the measured columns of kept and dropped pairs."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from altalign.browse.filters import literal, number
from altalign.browse.pairs import Pairs
from altalign.data.reasons import KEPT, WORDS, Stage
from altalign.errors import UsageError
from altalign.rules.rule import value_of

SAMPLES = 12  # pairs to look at, of those that go and of those that come
_LOOSER = "can only be loosened: the run keeps no value of pairs within it"
_SHRUNK = "can only be loosened: what was kept was shrunk, and its size as found is not in the run"


class Movable(NamedTuple):
    """A rule whose threshold, `{}`, can be moved, and when it drops a pair by the columns of the table."""

    columns: tuple[str, ...]  # that it measures
    drops: str
    less_is_looser: bool = False
    note: str = ""


_SIZE = ("width", "height")
# By reason. Other rules need what no row has: the vocabulary, a block list, the bytes of an image.
MOVABLE = {
    "text_too_short": Movable(("words",), "words < {}", less_is_looser=True),
    "text_too_long": Movable(("words",), "words > {}"),
    "text_on_too_many_images": Movable(("images_per_text",), "images_per_text > {}", note=_LOOSER),
    "image_has_too_many_texts": Movable(("texts_per_image",), "texts_per_image > {}", note=_LOOSER),
    "image_too_many_pixels": Movable(_SIZE, "width::BIGINT * height > {}"),
    "image_too_small": Movable(_SIZE, "least(width, height) <= {}", less_is_looser=True),
    "image_too_elongated": Movable(_SIZE, "greatest(width, height) >= {} * least(width, height)"),
    "image_nsfw": Movable(("nsfw_score",), "nsfw_score >= {}", note=_LOOSER),
    "near_duplicate_of_test_image": Movable(("similarity",), "similarity > {}", note=_LOOSER),
}
# What is known of a pair that comes back to a stage.
_AFTER = {
    Stage.JUDGE: "their images would be fetched; what becomes of them is not known",
    Stage.IMAGE: "their images would be looked at again, and compared with those of test sets",
    Stage.DECONTAMINATE: "would be kept",
    Stage.SELECT: "would be kept, unless the selection drops them for another reason",
}


def rules(pairs: Pairs) -> list[dict[str, Any]]:
    """The thresholds that can be moved, each with its value in the run."""
    found = list[dict[str, Any]]()
    for reason, movable in MOVABLE.items():
        words = WORDS[reason]
        config = pairs.run.config
        is_calibrated = reason == "near_duplicate_of_test_image" and config.decontaminate.calibration
        if is_calibrated or (words.on_with and not value_of(config, words.on_with)):
            continue
        value = value_of(config, words.threshold)
        step = 1 if isinstance(value, int) else 0.01 if value > 1 else 0.001
        found.append(
            {
                "reason": reason,
                "setting": words.threshold,
                "meaning": words.in_card[0].upper() + words.in_card[1:],
                "value": value,
                "at_least": movable.less_is_looser,
                "step": step,
                "note": _SHRUNK if movable.columns == _SIZE and config.shards.resize_short_side_px else movable.note,
            }
        )
    return found


def what_if(pairs: Pairs, asked: Mapping[str, Any], thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """What other thresholds, by their settings, would do to the pairs that match a filter.

    Raises UsageError: a setting has no threshold that can be moved, or moves to where nothing is known.
    """
    moved = _moved(pairs, thresholds)
    where = pairs.facets.where(asked)
    fails = _any(each.drops for each in moved)
    goes = _any(each.drops for each in moved if not each.is_loosened)
    kept = f"{where} AND reason = '{KEPT}'"
    only = ", ".join(map(literal, _only(pairs, {each.reason for each in moved}))) or "NULL"
    come = f"{where} AND failed IN ({only}) AND NOT ({fails})"
    numbers, go = pairs.arrays(f"SELECT n, {goes} AS goes FROM pairs WHERE {kept}")
    of_kept = {"kept": numbers, "stays": numbers[~go], "goes": numbers[go]}
    stages = [stage.value for stage in _AFTER]
    coming, at = pairs.arrays(f"SELECT n, coalesce(list_position({stages}, stage), 0) AS stage FROM pairs WHERE {come}")
    of_stages = {stage: coming[at == place] for place, stage in enumerate(_AFTER, 1)}
    is_curated = Stage.SELECT.value not in pairs.run.facts["stages"]  # any other one is not curated anew
    flags = " ".join(f"--set {each.setting}={each.value}" for each in moved)
    return {
        **{name: (len(some), pairs.distinct("image", some)) for name, some in of_kept.items()},
        "comes": [  # a pair may be there several times, and is one
            {
                "stage": stage.value,
                "pairs": pairs.distinct("key", some),
                "images": pairs.distinct("image", some),
                "note": _AFTER[stage],
            }
            for stage, some in of_stages.items()
            if len(some)
        ],
        "samples": {
            name: np.sort(some)[:SAMPLES].tolist() for name, some in (("goes", of_kept["goes"]), ("comes", coming))
        },
        "sql": f"SELECT {goes} AS goes, count(*), count(DISTINCT image) FROM pairs WHERE {kept} GROUP BY 1;\n"
        f"SELECT stage, count(DISTINCT key), count(DISTINCT image) FROM pairs WHERE {come} GROUP BY stage",
        "toml": _toml(moved),
        "command": f"altalign curate CONFIG.toml --rerun {flags}" if is_curated and flags else "",
    }


class _Moved(NamedTuple):
    """A threshold that is not the run's, and when its rule drops a pair."""

    reason: str
    setting: str
    value: int | float
    drops: str
    is_loosened: bool  # the rule says nothing of kept pairs


def _moved(pairs: Pairs, thresholds: Mapping[str, Any]) -> list[_Moved]:
    if not isinstance(thresholds, Mapping):
        raise UsageError("thresholds are an object of settings and numbers")
    found, movable = list[_Moved](), {rule["setting"]: rule for rule in rules(pairs)}
    for setting, value in thresholds.items():
        if (rule := movable.get(setting)) is None:
            raise UsageError(f"{setting!r}: no threshold that can be moved")
        drops = MOVABLE[rule["reason"]].drops.format(number(value))
        if isinstance(rule["value"], int) and not isinstance(value, int):
            raise UsageError(f"{setting} = {value}: no whole number")
        if rule["note"] and (value > rule["value"] if rule["at_least"] else value < rule["value"]):
            raise UsageError(f"{setting} = {value}: {rule['note']}")
        if value != rule["value"]:
            found.append(_Moved(rule["reason"], setting, value, drops, bool(rule["note"])))
    return found


def _toml(moved: Iterable[_Moved]) -> str:
    """The moved thresholds as settings."""
    sections = dict[str, Any]()
    for each in moved:
        *names, key = each.setting.split(".")
        place = sections
        for name in names:
            place = place.setdefault(name, {})
        place[key] = each.value
    return tomli_w.dumps(sections)


def _any(conditions: Iterable[str]) -> str:
    return " OR ".join(f"coalesce({condition}, false)" for condition in conditions) or "false"


def _only(pairs: Pairs, moved: set[str]) -> list[str]:
    """What pairs fail that fail nothing but the moved rules."""
    every = (str(each) for (each,) in pairs.query("SELECT DISTINCT failed FROM pairs WHERE failed <> ''"))
    return [each for each in every if {*each.split(" ")} <= moved]
