"""Reasons in words: what each means, the setting that it is held against, and which took most of a run."""

import json
from collections.abc import Callable, Iterable, Mapping

from altalign.data.counts import Counts
from altalign.data.reasons import OF_SELECT, OWN, SECTIONS, WORDS, Stage, own_reason
from altalign.rules.own import filters
from altalign.rules.rule import value_of
from altalign.settings.curate import CurateConfig

_OF_SELECT = {
    "score_below:": "{name} is below what was asked for",
    "score_above:": "{name} is above what was asked for",
    "score_missing:": "{name} is missing",
    "not_in_top:": "{name} is not among the share of highest values that was asked for",
    "not_where:": "condition {name} does not hold",
}


def of_own(stage: Stage, config: CurateConfig) -> dict[str, str]:
    """The reasons of a run's own rules, each with a sentence: where the rule is, and its settings."""
    sentences = dict[str, str]()
    for entry in filters(stage, config):
        section, name = SECTIONS[stage], entry.rpartition(":")[2]
        settings = getattr(config, section).own.get(name, {})
        given = "".join(f", {key} = {json.dumps(value)}" for key, value in settings.items())
        sentences[own_reason(entry)] = f'[{section}] filters = ["{entry}"]{given}'
    return sentences


def of_select(reasons: Iterable[str]) -> dict[str, str]:
    """Those reasons that are of scores and conditions, each in words."""
    named = ((reason, reason.partition(":")) for reason in reasons if reason.startswith(OF_SELECT))
    return {reason: _OF_SELECT[f"{kind}:"].format(name=name) for reason, (kind, _, name) in named}


def sentence(config: CurateConfig, reason: str) -> str:
    """The sentence about a reason, with the value of its setting filled in."""
    if reason.startswith(OWN):
        own = (of_own(stage, config) for stage in SECTIONS)
        return next((f"A rule of this run's own: {words[reason]}." for words in own if reason in words), "")
    if words_of_select := of_select([reason]):
        words = words_of_select[reason]
        return f"{words[0].upper()}{words[1:]}."
    words = WORDS[reason]
    name = next(iter(words.settings), "")
    return words.meaning.replace(f"`{name}`", f"`{_valued(config, name)}`", 1) if name else words.meaning


def explained(
    reason: str, config: CurateConfig, row: Mapping[str, object], values: Mapping[str, Callable[[], str]]
) -> str:
    """What `explain` says of a dropped row and a built-in reason: what was measured, and the threshold.

    `values` are further values by their names in `Words.explain`, each computed where it is named.
    """
    words = WORDS[reason]
    section, _, key = words.threshold.rpartition(".")
    setting = f"[{section}] {key} = {value_of(config, words.threshold)}" if key else ""
    template = words.explain or ("{setting}" if setting else words.meaning.replace("{", "{{").replace("}", "}}"))
    named = {name: value() for name, value in values.items() if f"{{{name}}}" in template}
    return template.format(row=row, config=config, setting=setting, **named)


def _valued(config: CurateConfig, name: str) -> str:
    """A setting with its value, such as "text.words_at_least = 3"."""
    value = value_of(config, name)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{name} = {value:_}" if is_count else f"{name} = {value}"


def largest_drop(counts: Counts, config: CurateConfig) -> str:
    """The reason that took the largest share of what its stage received, with its settings; empty where none did."""
    shares = [
        (rows / counts.received(stage), rows, stage, reason)
        for stage in counts.stages_of_run()
        for reason, rows in counts.dropped(stage).items()
    ]
    if not shares:
        return ""
    _, rows, stage, reason = max(shares, key=lambda each: each[:2])
    names = WORDS[reason].settings if reason in WORDS else []
    by = f" ({', '.join(_valued(config, name) for name in names)})" if names else ""
    return f"{stage.value} dropped {rows:,} of {counts.received(stage):,} as {reason}{by}"
