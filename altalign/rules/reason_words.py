"""Reasons in words: what each means, the setting that it is held against, and which took most of a run."""

import ast
import inspect
import json
from collections.abc import Iterable
from functools import cache, reduce
from itertools import pairwise

from altalign.data import reasons
from altalign.data.counts import Counts
from altalign.data.reasons import OF_SELECT, OWN, REASONS, Stage, own_reason
from altalign.settings.curate import CurateConfig


def of_stage(stage: Stage, config: CurateConfig) -> list[str]:
    """The reasons of a stage in a run, those of its own rules last."""
    return [*map(str, REASONS[stage]), *map(own_reason, _filters(stage, config))]


def of_own(stage: Stage, config: CurateConfig) -> dict[str, str]:
    """The reasons of a run's own rules, each with a sentence: where the rule is, and its settings."""
    section = SECTIONS.get(stage, "")
    own = getattr(config, section).own if section else {}
    said = dict[str, str]()
    for entry in _filters(stage, config):
        name = entry.rpartition(":")[2]
        given = "".join(f", {key} = {json.dumps(value)}" for key, value in own.get(name, {}).items())
        said[own_reason(entry)] = f'[{section}] filters = ["{entry}"]{given}'
    return said


_OF_SELECT = {
    "score_below:": "{name} is below what was asked for",
    "score_above:": "{name} is above what was asked for",
    "score_missing:": "{name} is missing",
    "not_in_top:": "{name} is not among the share of highest values that was asked for",
    "not_where:": "condition {name} does not hold",
}


def of_select(reasons: Iterable[str]) -> dict[str, str]:
    """Those reasons that are of scores and conditions, each in words."""
    named = ((reason, reason.partition(":")) for reason in reasons if reason.startswith(OF_SELECT))
    return {reason: _OF_SELECT[f"{kind}:"].format(name=name) for reason, (kind, _, name) in named}


SECTIONS = {Stage.JUDGE: "text", Stage.IMAGE: "image"}  # whose `filters` a stage asks


def _filters(stage: Stage, config: CurateConfig) -> list[str]:
    return getattr(config, SECTIONS[stage]).filters if stage in SECTIONS else []


@cache
def about() -> dict[str, str]:
    """The docstring of each reason, by its name."""
    tree = ast.parse(inspect.getsource(reasons))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DropReason")
    found = {}
    for statement, below in pairwise(body):
        match statement, below:
            case ast.Assign(value=ast.Constant(value=str(name))), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = " ".join(said.split())
    return found


def setting(reason: str) -> str:
    """The first setting that a reason's docstring names, such as "text.words_at_least"; empty where it names none."""
    return next(iter(_settings(reason)), "")


def _settings(reason: str) -> list[str]:
    return [word for word in about().get(reason, "").split("`")[1::2] if "." in word]


def told(config: CurateConfig, reason: str) -> str:
    """The sentence about a reason, with the value of its setting filled in."""
    if reason.startswith(OWN):
        own = (of_own(stage, config) for stage in SECTIONS)
        return next((f"A rule of this run's own: {said[reason]}." for said in own if reason in said), "")
    if told := of_select([reason]):
        return f"{told[reason][0].upper()}{told[reason][1:]}."
    name, said = setting(reason), about().get(reason, "")
    return said.replace(f"`{name}`", f"`{valued(config, name)}`", 1) if name else said


def valued(config: CurateConfig, name: str) -> str:
    """A setting with its value, such as "text.words_at_least = 3"."""
    value = reduce(getattr, name.split("."), config)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{name} = {value:_}" if is_count else f"{name} = {value}"


def told_of_most(counts: Counts, config: CurateConfig) -> str:
    """The reason that took the largest share of what its stage received, with its settings; empty where none did.

    Shares are of a stage, because the first stages receive most: pages lose most rows as alt_empty, and what is left of
    them all as not_in_archive.
    """
    shares = [
        (rows / counts.received(stage), rows, stage, reason)
        for stage in counts.stages()
        for reason, rows in counts.dropped(stage).items()
    ]
    if not shares:
        return ""
    _, rows, stage, reason = max(shares, key=lambda each: each[:2])
    by = f" ({', '.join(valued(config, name) for name in names)})" if (names := _settings(reason)) else ""
    return f"{stage.value} dropped {rows:,} of {counts.received(stage):,} as {reason}{by}"
