"""One pair: its fields, what each stage did with it, its rules, failed or passed, pairs like it, its picture."""

import shlex
from collections.abc import Mapping
from typing import Any

from altalign.audit import explain
from altalign.audit import rows as run_rows
from altalign.browse.pairs import Pairs
from altalign.browse.what_if import MOVABLE
from altalign.data.audit_tables import SAMPLES
from altalign.data.reasons import KEPT, WORDS, DropReason, Stage, stages_of
from altalign.filters import thumbnails
from altalign.rules import own, reason_words
from altalign.rules.rule import value_of

_RELATED = {
    "same image": ("image_id", "image_id"),
    "same caption": ("caption", "caption"),
    "same image and caption": ("key", "key"),
    "kept instead": ("key", "kept_key"),
    "dropped for this one": ("kept_key", "key"),
}
_OPTIONS = {"key": "--key", "image_url": "--url", "file": "--source-key"}
# Stages that ask one rule after the other: after the one that drops a pair, none is asked.
_ONE_BY_ONE = (Stage.EXTRACT, Stage.FETCH, Stage.DECONTAMINATE)


def details(pairs: Pairs, number: int) -> dict[str, Any]:
    """All that is known of a pair, by its number in the table."""
    row = pairs.in_file(number)
    in_table = pairs.rows([number])[0]
    scores = {name: in_table[name] for name in map(pairs.named.__getitem__, pairs.columns.scores)}
    fields = {name: value for name, value in {**row, **scores}.items() if value not in (None, "", [])}
    fields.pop("preferences", None)  # the steps have them
    # a broken record has a file alone
    of = next((name for name in ("key", "image_url", "file") if row.get(name)), "key")
    named = f"{_OPTIONS[of]} {shlex.quote(row.get(of) or '')}"
    return {
        "fields": [
            [name, ", ".join(value) if isinstance(value, list) else str(value)] for name, value in fields.items()
        ],
        "steps": explain.of_row(pairs.run, row, lambda key: _fate(pairs, key)),
        "rules": _rules(pairs, row),
        "related": _related(pairs, row, number),
        "command": f"altalign explain {shlex.quote(pairs.run.folder)} {named}",
    }


def _rules(pairs: Pairs, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every rule of the run: failed, passed, or not asked, for the pair was dropped before."""
    config, found = pairs.run.config, list[dict[str, str]]()
    stages = stages_of(pairs.run.facts["stages"])
    at = stages.index(Stage(row["stage"])) if row.get("stage") else len(stages)
    failed = row.get("failed") or [row.get("reason")]
    for place, stage in enumerate(stages):
        reasons, is_over = own.reasons(stage, config), False
        for reason in [*reasons, *(each for each in failed if place == at and each not in reasons)]:
            words = WORDS.get(reason)
            if words and words.on_with and not value_of(config, words.on_with):
                continue
            has_failed = place == at and reason in failed
            # a repeated pair is looked for among those that pass
            is_asked = place < at or (place == at and not is_over and reason != DropReason.PAIR_REPEATED)
            state = "failed" if has_failed else "passed" if is_asked else "not asked"
            is_over = is_over or (has_failed and stage in _ONE_BY_ONE)
            if stage is Stage.SELECT and state != "failed":
                continue  # most of its reasons are of other ways to select
            columns = MOVABLE[reason].columns if reason in MOVABLE else ()
            measured = " x ".join(str(row[name]) for name in columns if row.get(name) is not None)
            setting = f"{words.threshold} = {value_of(config, words.threshold)}" if words and words.threshold else ""
            meaning = reason_words.sentence(config, reason).replace("`", "")
            about = {"stage": stage.value, "reason": reason, "meaning": meaning, "state": state}
            found.append({**about, "measured": measured, "setting": setting})
    return found


def _related(pairs: Pairs, row: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    found = list[dict[str, Any]]()
    for what, (name, of) in _RELATED.items():
        if value := row.get(of):
            asked = {"values": {name: [value]}}
            if others := pairs.count_of(f"{pairs.facets.where(asked)} AND n <> {int(number)}"):
                found.append({"what": what, "pairs": others, "filter": asked})
    return found


def _fate(pairs: Pairs, key: str | None) -> str:
    """What became of the row for which another was dropped."""
    where = pairs.facets.where({"values": {"key": [key]}}) if key else "false"
    rows = pairs.query(f"SELECT reason FROM pairs WHERE {where} AND reason <> '{DropReason.PAIR_REPEATED}' LIMIT 1")
    if not rows:
        return "is not in the run now: it was removed on request, or has not been read yet"
    return "was kept" if rows[0][0] == KEPT else f"was dropped later: {rows[0][0]}"


class Pictures:
    """Small pictures of pairs: of kept ones from the shards, of dropped ones where the run kept a sample."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        rows = run_rows.listed(pairs.run, SAMPLES) or []
        self._samples: dict[str, bytes] = {
            row["key"]: row["picture"] for row in rows if row["key"] and row["picture"] and row["reason"] != KEPT
        }

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the table has one."""
        return row["reason"] == KEPT or row["key"] in self._samples

    def of(self, number: int) -> bytes | None:
        """The picture of a pair as WebP, at most 192 px, never the bytes as found; None where there is none."""
        row = self._pairs.in_file(number)
        if not row["shard"]:
            picture = self._samples.get(row["key"])
        else:
            picture = run_rows.image(self._pairs.run, f"{row['shard']}.tar", row["tar_offset"], row["tar_bytes"])
        most = self._pairs.run.config.image.pixels_at_most
        return None if picture is None else thumbnails.picture(picture, pixels_at_most=most)
