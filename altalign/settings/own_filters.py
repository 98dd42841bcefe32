"""Entries of `[text] filters` and `[image] filters`: MODULE:FUNCTION, and the settings of these functions."""

import re
from typing import Any

AT_MOST = 48  # verdicts are bits of 64, which the built-in rules share

Own = dict[str, dict[str, Any]]  # settings of rules of a run's own, by the names of their functions


def check(filters: list[str], own: Own) -> None:
    """Refuse entries that name no function, or one twice, and settings of a function that is not named."""
    names = [entry.rpartition(":")[2] for entry in filters]
    for entry in filters:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", entry, re.ASCII):
            raise ValueError(
                f'filters: "{entry}" names no function; give MODULE:FUNCTION, such as "my_rules:no_prices"'
            )
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ValueError(f'filters: two functions are named "{twice}", and so would be their reasons; rename one')
    if len(filters) > AT_MOST:
        raise ValueError(f"filters: {len(filters)} functions, and at most {AT_MOST} can be asked; join some")
    if unknown := [name for name in own if name not in names]:
        raise ValueError(f'own.{unknown[0]}: filters have no function "{unknown[0]}" (there are: {", ".join(names)})')
