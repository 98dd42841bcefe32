"""The data-set card, from a run's counts, summary and settings: `README.md` with the Hub's header, `croissant.json`.

Deterministic: no times, no machine, and nothing that came from the web; captions stay in the shards.
"""

import html
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from altalign import storage
from altalign.data import listing
from altalign.data.reasons import KEPT, PAPERS, REASONS, WORDS, DropReason
from altalign.data.schema import RULES_VERSION, SAMPLE
from altalign.pipelines.card.croissant import croissant
from altalign.pipelines.card.facts import COLUMNS, CardFacts, hub_licence, model_of, size_category
from altalign.rules.reason_words import of_own, of_select
from altalign.rules.rule import value_of
from altalign.settings.curate import CurateConfig, InputSettings
from altalign.terminal import shown

if TYPE_CHECKING:
    from jinja2 import Template

_KINDS = {
    "warc": "web archives (WARC)",
    "wat": "metadata of web archives (WAT)",
    "table": "a table",
    "webdataset": "WebDataset tars",
    "folder": "folders of images",
}
_STATED_AS_LIMITS = ("NSFW: off", "decontamination: off")  # these notes stand under Limits, in more words


def write(folder: str, facts: CardFacts) -> dict[str, str]:
    """Write both files into a run folder; returns the SHA-256 of each, in hex."""
    readme_path, croissant_path = (storage.join(folder, name) for name in listing.CARD)
    storage.write_bytes(readme_path, readme(facts).encode())
    storage.write_json(croissant_path, croissant(facts))
    return {name: listing.digest(storage.join(folder, name)).digest for name in listing.CARD}


def readme(facts: CardFacts) -> str:
    """The card for people, with the header for the Hub."""
    config, counts = facts.config, facts.counts
    stages = counts.stages_of_run()
    last = stages[-1].value
    honoured = {"opt-out headers": config.fetch.honour_opt_out, "robots.txt": config.fetch.honour_robots}
    return _template().render(
        facts=facts,
        config=config,
        card=config.card,
        summary=facts.summary,
        licence=hub_licence(config.card.licence),
        languages=list(dict.fromkeys(tag.partition("-")[0] for tag in config.card.languages)),
        size_category=size_category(facts.summary["pairs"]),
        columns=SAMPLE,
        words_of_columns=COLUMNS,
        sources=_sources(config.input),
        kept_by_source={
            source: rows for stage, source, reason, rows in counts.to_json() if stage == last and reason == KEPT
        },
        kinds_of_scores={score.facts.get("kind") for score in facts.scores},
        origins_of_images=_origins_of_images(config),
        honoured=[name for name, is_on in honoured.items() if is_on],
        rules_version=RULES_VERSION,
        stages=counts.summary(stages),
        rules=list(_rules(facts)),
        notes=[note for note in facts.notes if not note.startswith(_STATED_AS_LIMITS)],
        list_of_files=listing.FILE,
    )


@cache
def _template() -> "Template":
    from altalign.pages import markdown  # Jinja, which commands that write no card need not wait for

    filters = {"text": _text, "quoted": _quoted, "number": "{:,}".format, "model": model_of}
    return markdown.template(Path(__file__).parent / "templates" / "README.md.jinja", filters)


def _sources(inputs: Iterable[InputSettings]) -> dict[str, list[str]]:
    """The kinds of each source, in words."""
    kinds = dict[str, list[str]]()
    for each in inputs:
        kinds_of_source = kinds.setdefault(each.source, [])
        if _KINDS[each.kind] not in kinds_of_source:
            kinds_of_source.append(_KINDS[each.kind])
    return kinds


def _origins_of_images(config: CurateConfig) -> list[str]:
    in_hand = config.fetch.source == "archive" or any(each.has_images for each in config.input)
    return ["the inputs themselves"] * in_hand + ["the web (HTTP)"] * (config.fetch.source == "web")


class _Rule(NamedTuple):
    """A row of the table of rules: thresholds as text, empty where there are none."""

    stage: str
    meaning: str
    here: str
    paper: str
    reason: str
    pairs: int


def _rules(facts: CardFacts) -> Iterator[_Rule]:
    """Every rule that is on or that dropped a pair."""
    for stage in facts.counts.stages_of_run():
        dropped = facts.counts.dropped(stage)
        for reason in REASONS[stage]:
            pairs = dropped.get(reason, 0)
            if pairs or _is_on(reason, facts.config):
                yield _Rule(stage.value, WORDS[reason].in_card, *_thresholds(reason, facts), reason, pairs)
        for reason, words in (of_own(stage, facts.config) | of_select(dropped)).items():
            meaning = facts.conditions.get(reason, words)
            yield _Rule(stage.value, meaning, "", "ours", reason, dropped.get(reason, 0))


def _is_on(reason: str, config: CurateConfig) -> bool:
    """Whether a rule with a threshold is on."""
    words = WORDS[reason]
    if reason.startswith("http_") and config.fetch.source != "web":
        return False
    return bool(words.threshold) and (not words.on_with or bool(value_of(config, words.on_with)))


def _thresholds(reason: str, facts: CardFacts) -> tuple[str, str]:
    """The threshold of this run, and the paper's."""
    threshold = WORDS[reason].threshold
    if not threshold:
        return "", "ours"
    here = value_of(facts.config, threshold)
    if reason == DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE:  # a calibration may have brought another
        here = facts.summary.get("near_duplicates", {}).get("similarity_above", here)
    paper = PAPERS.get(reason)
    if paper is None:
        return _number(here), "ours"
    return _number(here), "no number" if paper.number is None else _number(paper.number)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _text(text: str) -> str:
    """Text of settings as Markdown has it: nothing in it is markup."""
    escaped = html.escape(shown(text), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|~#" else character for character in escaped)


def _quoted(text: str) -> str:
    """A string as YAML (and JSON) has it."""
    return json.dumps(text, ensure_ascii=False)
