"""Settings of earlier versions, which settings files and the settings of runs still name."""

from collections.abc import Mapping
from typing import Any

TAKE_IT_OUT = "take it out"
Removed = Mapping[str, tuple[object, str]]  # SECTION.SETTING: the value that holds now, and what to do about another


def without_removed(values: Mapping[str, Any], removed: Removed) -> dict[str, Any]:
    """The values of a settings file without settings that were removed, where these say what holds now.

    Raises:
        ValueError: one says something else; the message names it, and what to do.
    """
    kept = dict(values)
    for name, (now, advice) in removed.items():
        section, setting = name.split(".")
        table = kept.get(section)
        if not isinstance(table, Mapping) or setting not in table:
            continue
        if (value := table[setting]) != now:
            raise ValueError(f"[{section}] {setting} = {value!r}: there is no such setting any more; {advice}")
        kept[section] = {other: value for other, value in table.items() if other != setting}
        if not kept[section]:
            del kept[section]
    return kept
