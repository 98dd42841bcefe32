"""Finds pairs of a run by URL, caption or key, and says what happened to each in every stage."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

import ada_url
import numpy as np
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import removed, rows, tries
from altalign.audit.rows import Condition, FoundDropped, FoundSample
from altalign.audit.run_folder import RunFolder
from altalign.data import generations
from altalign.data.reasons import OF_SELECT, OWN, DropReason, Stage, stages_of
from altalign.errors import NotFoundError, UsageError
from altalign.filters import one_caption, one_url
from altalign.rules import reason_words
from altalign.storage import arrays
from altalign.terminal import shown

MOST = 20
_WIDTH = max(len(stage.value) for stage in Stage)


def wanted(
    *, url: str | None, text: str | None, key: str | None, source_key: str | None
) -> list[tuple[Condition, str]]:
    """The condition that rows must match, and its description; then those to try where no row matches.

    Raises UsageError: more or less than one argument is given, or the key is not 32 hex digits.
    """
    if sum(given is not None for given in (url, text, key, source_key)) != 1:
        raise UsageError("a pair is looked up by its url, its text, its key or its source_key; give one of the four")
    if key is not None:
        digits = key.strip().lower()
        if len(digits) != 32 or set(digits) - set("0123456789abcdef"):
            raise UsageError(f"--key {key}: not 32 hex digits; give the key or the image_id of a pair")
        matches = (pc.field("key") == digits) | (pc.field("image_id") == digits)
        return [(Condition(matches, ("key", "image_id")), f"key or image_id {digits}")]
    if url is not None:
        found, _ = one_url.parsed(_utf8(url, "--url"))
        columns = ("image_url", "page_url")
        return [(Condition(pc.field(name).isin([found, url]), (name,)), f"{name} {found!r}") for name in columns]
    if source_key is not None:
        named = pc.field("source_key") == _utf8(source_key, "--source-key")
        for colon in (place for place, character in enumerate(source_key) if character == ":"):
            of_input = pc.field("source") == source_key[:colon]
            named |= of_input & (pc.field("source_key") == source_key[colon + 1 :])
        # A broken record has no name, but its file; that of a caption differs from its image's by the ending alone.
        file = source_key.rpartition("#")[0] or source_key
        ending = rf"(^|/)({re.escape(file)}|{re.escape(str(PurePosixPath(file).with_suffix('')))}\.\w+)$"
        of_file = pc.match_substring_regex(pc.field("file"), ending)
        end = pc.match_substring_regex(pc.field("source_key"), rf"[/#]{re.escape(source_key)}$")
        return [
            (Condition(named, ("source", "source_key")), f"source_key {source_key!r}"),
            (Condition(end, ("source_key",)), f"a source_key that ends with {source_key!r}"),
            (Condition(of_file, ("file",)), f"file {file!r}"),
        ]
    caption = one_caption.clean(_utf8(text or "", "--text"))
    part = pc.match_substring(pc.field("caption"), caption, ignore_case=True)
    return [
        (Condition(pc.field("caption") == caption, ("caption",)), f"caption {caption!r}"),
        (Condition(part, ("caption",)), f"{caption!r} in the caption"),
    ]


def _utf8(text: str, option: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} {text}: not UTF-8; captions and URLs of a run are") from None
    return text


@dataclass(frozen=True, repr=False)
class Explanation:
    """What happened to the pairs that were looked up; as a string, what `altalign explain` prints.

    Attributes:
        what: what was looked up.
        kept: how many pairs were kept.
        dropped: how many were dropped.
        rows: the first 20 of them, kept ones first: rows of side-cars, or dropped rows; `in` names the file.
        told: what happened to each of these, line by line.
    """

    what: str
    kept: int
    dropped: int
    rows: list[FoundSample | FoundDropped]
    told: list[list[str]]

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for number, lines in enumerate(self.told):
            yield from ([""] if number else [])
            yield from map(shown, lines)
        if (more := self.kept + self.dropped - len(self.rows)) > 0:
            yield ""
            of_all = f"({self.kept:,} kept, {self.dropped:,} dropped in all)"
            yield shown(f"… and {more:,} more pairs with {self.what} {of_all}")


def explain(
    run: RunFolder,
    *,
    url: str | None = None,
    text: str | None = None,
    key: str | None = None,
    source_key: str | None = None,
) -> Explanation:
    """Says what happened to the pairs of a URL, a caption, a key or a name in the input.

    Raises NotFoundError: there is none; UsageError: as `wanted`.
    """
    conditions = wanted(url=url, text=text, key=key, source_key=source_key)
    for matches, what in conditions:
        found = _explained(run, matches, what)
        if found.rows:
            return found
    what = conditions[0][1]
    if gone := list(removed.told(run, key=key, url=url, source_key=source_key)):
        return Explanation(what, 0, 0, rows=[], told=gone)
    raise NotFoundError(f"{run.folder}: nothing found with {what}{_hint(run, source_key=source_key)}")


def _explained(run: RunFolder, matches: Condition, what: str) -> Explanation:
    first, told, kept, dropped = list[FoundSample | FoundDropped](), list[list[str]](), 0, 0
    for row in () if "file" in matches.columns else rows.samples(run, matches):  # side-cars have no broken records
        kept += 1
        if len(first) < MOST:
            first.append(row)
            told.append([*_kept(run, row), *_tries(run, row)])
    for row in rows.dropped(run, matches):
        dropped += 1
        if len(first) < MOST:
            first.append(row)
            told.append([*_dropped(run, row), *_tries(run, row)])
    return Explanation(what, kept, dropped, rows=first, told=told)


def _hint(run: RunFolder, *, source_key: str | None) -> str:
    parts = []
    if gone := len(removed.rows(run, pc.field("kind") == "pair")):
        parts.append(
            f"{gone:,} pair{'s were' if gone > 1 else ' was'} removed on request; --key or the request's entry finds it"
        )
    if not run.is_finished:
        parts.append("the run is not finished")
    if not run.config.audit.keep_dropped:
        parts.append("[audit] keep_dropped = false: dropped rows were not kept")
    parts.append("extract keeps only a sample of what it drops (no alt-text, no valid URL)")
    if source_key is not None:
        valid: Any = pc.field("source_key").is_valid()
        has_name = Condition(valid, ("source_key",))
        named = next(chain(rows.samples(run, has_name), rows.dropped(run, has_name)), None)
        parts.append(
            f"names of this run are like {named['source_key']!r}"
            if named
            else "no pair of this run has a name, as those of pages have none; give --url or --text"
        )
    return "; " + "; ".join(parts)


def _pair(row: Mapping[str, object]) -> list[str]:
    columns = ("caption", "image_url", "page_url", "source", "source_key", "extra", "key", "image_id")
    labels = ("caption", "image", "page", "source", "name", "extra", "key", "image_id")
    found = zip(labels, map(row.get, columns), strict=True)  # runs of an earlier schema lack some
    return [f"{label:<9} {value}" for label, value in found if value is not None]


def _kept(run: RunFolder, row: FoundSample) -> list[str]:
    shard = row["in"].removesuffix(".parquet") + ".tar"
    generation = generations.of(storage.name(shard))
    shard += f" (generation {generation})" if generation > 1 else ""
    measured = f"{_many(row['words'], 'word')}, {_size(row)} {row['format']}, {row['bytes']:,} bytes"
    stages = stages_of(run.facts["stages"])
    return [*_pair(row), *(_line(stage.value, "kept") for stage in stages), _line("written", f"{shard}, {measured}")]


def _dropped(run: RunFolder, row: FoundDropped) -> list[str]:
    names = [stage.value for stage in Stage]
    lines = [_line(name, "kept") for name in names[: names.index(row["stage"])]]
    lines.append(_line(row["stage"], f"dropped: {row['reason']}"))
    lines += [_line("", f"- {reason}: {_said(run, reason, row)}") for reason in row["failed"] or [row["reason"]]]
    return [*_pair(row), *lines, _line("row in", row["in"])]


def _line(name: str, said: str) -> str:
    return f"  {name:<{_WIDTH}} {said}"


def _tries(run: RunFolder, row: FoundSample | FoundDropped) -> list[str]:
    """The last `MOST` tries of fetching the image, if it came from the web."""
    if run.config.fetch.source != "web" or row.get("stage") in (Stage.EXTRACT, Stage.JUDGE):
        return []
    assert row["image_id"] is not None  # it was fetched
    of_image = tries.of_image(run, row["image_id"])
    more = f" (the last {MOST} of {len(of_image)})" if len(of_image) > MOST else ""
    return [
        _line("tried", f"{tries.told(each, row['image_url'])}{more if number == 0 else ''}")
        for number, each in enumerate(of_image[-MOST:])
    ]


def _said(run: RunFolder, reason: str, row: FoundDropped) -> str:
    """The measured value and the setting that it was compared with."""
    if reason.startswith(OWN):
        return reason_words.of_own(Stage(row["stage"]), run.config)[reason]
    if reason.startswith(OF_SELECT):
        return f"{run.conditions.get(reason) or reason_words.of_select([reason])[reason]}{_values(row)}"
    values: dict[str, Callable[[], str]] = {
        "words": lambda: _many(row["words"], "word"),
        "size": lambda: _size(row),
        "cosine": lambda: _cosine(row),
        "cosine_above": lambda: _threshold(run),
        "kept_row": lambda: _fate(run, row["kept_key"]),
        "rare_ngrams": lambda: _rare_ngrams(run, row["caption"]),
        "no_url": lambda: _no_url(row["image_url"]),
    }
    return reason_words.explained(reason, run.config, row, values)


def _fate(run: RunFolder, key: str | None) -> str:
    """What became of the row for which another was dropped."""
    if key is None or list(removed.rows(run, (pc.field("kind") == "pair") & (pc.field("hash") == key))):
        return "was removed since, on request"
    has_key = Condition(pc.field("key") == key, ("key",))
    if sample := next(rows.samples(run, has_key), None):
        return f"was kept ({sample['source_key'] or 'in ' + sample['in']})"
    row = next((row for row in rows.dropped(run, has_key) if row["reason"] != DropReason.PAIR_REPEATED), None)
    return f"was dropped later: {row['reason']}" if row else "went on to the next stage"


def _values(row: FoundDropped) -> str:
    """The values that `select` decided by."""
    values = json.loads(row.get("scores") or "{}")
    return "".join(f"; {name} = {'null' if value is None else value}" for name, value in values.items())


def _size(row: Mapping[str, object]) -> str:
    return f"{row['width']} x {row['height']} px"


def _cosine(row: Mapping[str, object]) -> str:
    return (
        "connected through other images with" if row["similarity"] is None else f"cosine {row['similarity']:.4f} with"
    )


def _threshold(run: RunFolder) -> str:
    """The cosine above which images are near-duplicates, and where it comes from."""
    settings = run.config.decontaminate
    if not settings.calibration:
        return f"[decontaminate] similarity_above = {settings.similarity_above}"
    learned = storage.read_json(run.path("audit", "near_duplicates", "calibration.json"))
    return f"above {learned.get('similarity_above')} by [decontaminate] calibration = {settings.calibration!r}"


def _no_url(url: str | None) -> str:
    """Why this is not the URL of an image."""
    if not url:
        return "it has no URL"
    try:
        scheme = ada_url.URL(url).protocol
    except ValueError:
        return "it is not a valid URL (WHATWG)"
    return f"its scheme is {scheme.removesuffix(':')}, not http or https"


def _rare_ngrams(run: RunFolder, caption: str) -> str:
    """The unigrams and bigrams of a caption that are outside the vocabulary."""
    table = arrays.mapped(run.path("tables", "vocabulary.npy"))
    hashes = np.array(one_caption.ngram_hashes(caption), np.uint64)
    is_known = np.searchsorted(table, hashes) < np.searchsorted(table, hashes, "right")
    grams = zip(one_caption.ngrams_of(caption), is_known, strict=True)
    rare = list(dict.fromkeys(gram for gram, known in grams if not known))
    more = f" and {len(rare) - 10} more" if len(rare) > 10 else ""
    return "rare: " + ", ".join(f'"{gram}"' for gram in rare[:10]) + more


def _many(number: int | None, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
