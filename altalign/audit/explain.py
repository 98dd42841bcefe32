"""Finds pairs of a run by URL, caption or key, and says what happened to each in every stage."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any, cast

import ada_url
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage, terminal
from altalign.audit import rows
from altalign.audit.rows import Condition, Found
from altalign.audit.run_folder import RunFolder
from altalign.data.key import image_id
from altalign.data.reasons import OF_SELECT, OWN, DropReason, Stage, stages_of
from altalign.data.schema import Try
from altalign.errors import NotFoundError, UsageError
from altalign.filters import one_caption, one_url, personal
from altalign.rules import reason_words
from altalign.storage import arrays
from altalign.terminal import many, shown

MOST = 20
_PARTITIONS_AT_MOST = 1 << 16  # of survivors: a power of two, unknown once work/ is deleted
_WIDTH = max(len(stage.value) for stage in Stage)
# Columns of a pair, each with its label.
_PAIR = {
    "caption": "caption",
    "image_url": "image",
    "page_url": "page",
    "source": "source",
    "source_key": "name",
    "extra": "extra",
    "key": "key",
    "image_id": "image_id",
}


def conditions(
    *, url: str | None, text: str | None, key: str | None, source_key: str | None
) -> list[tuple[Condition, str]]:
    """The condition that rows must match, and its description; then those to try where no row matches.

    Raises UsageError: more or less than one argument is given, or the key is not 32 hex digits.
    """
    given = [each for each in (url, text, key, source_key) if each is not None]
    if len(given) != 1:
        raise UsageError("a pair is looked up by its url, its text, its key or its source_key; give one of the four")
    try:
        given[0].encode()
    except UnicodeEncodeError:
        raise UsageError(f"{given[0]}: not UTF-8; captions and URLs of a run are") from None
    if key is not None:
        digits = key.strip().lower()
        if len(digits) != 32 or set(digits) - set("0123456789abcdef"):
            raise UsageError(f"--key {key}: not 32 hex digits; give the key or the image_id of a pair")
        matches = (pc.field("key") == digits) | (pc.field("image_id") == digits)
        return [(Condition(matches, ("key", "image_id")), f"key or image_id {digits}")]
    if url is not None:
        normal, _ = one_url.parsed(url)
        columns = ("image_url", "page_url")
        return [(Condition(pc.field(name).isin([normal, url]), (name,)), f"{name} {normal!r}") for name in columns]
    if source_key is not None:
        # the whole name, after its input or not, or the end of a path or FILE#ROW
        name = cast(Any, pc).binary_join_element_wise(pc.field("source"), pc.field("source_key"), ":")
        named = pc.match_substring_regex(name, f"(^|[:/#]){re.escape(source_key)}$")
        # A broken record has no name, but its file; that of a caption differs from its image's by the ending alone.
        file = source_key.rpartition("#")[0] or source_key
        if not PurePosixPath(file).name:
            raise UsageError(f"--source-key {source_key!r}: no name of a file or a row; give one")
        ending = rf"(^|/)({re.escape(file)}|{re.escape(str(PurePosixPath(file).with_suffix('')))}\.\w+)$"
        of_file = pc.match_substring_regex(pc.field("file"), ending)
        return [
            (Condition(named, ("source", "source_key")), f"source_key {source_key!r}"),
            (Condition(of_file, ("file",)), f"file {file!r}"),
        ]
    caption = one_caption.clean(text or "")
    part = pc.match_substring(pc.field("caption"), caption, ignore_case=True)
    return [
        (Condition(pc.field("caption") == caption, ("caption",)), f"caption {caption!r}"),
        (Condition(part, ("caption",)), f"{caption!r} in the caption"),
    ]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What happened to the pairs that were looked up; as a string, what `altalign explain` prints.

    Attributes:
        what: what was looked up.
        kept: how many pairs were kept.
        dropped: how many were dropped.
        rows: the first 20 of them, kept ones first: rows of side-cars, or dropped rows; `in` names the file.
        lines: what happened to each of these, line by line.
    """

    what: str
    kept: int
    dropped: int
    rows: list[Found]
    lines: list[list[str]]

    def __repr__(self) -> str:
        paragraphs = ["\n".join(map(shown, lines)) for lines in self.lines]
        if (more := self.kept + self.dropped - len(self.rows)) > 0:
            in_all = f"({self.kept:,} kept, {self.dropped:,} dropped in all)"
            paragraphs.append(shown(f"… and {more:,} more pairs with {self.what} {in_all}"))
        return "\n\n".join(paragraphs)


def explain(
    run: RunFolder,
    *,
    url: str | None = None,
    text: str | None = None,
    key: str | None = None,
    source_key: str | None = None,
) -> Explanation:
    """Says what happened to the pairs of a URL, a caption, a key or a name in the input.

    Raises NotFoundError: there is none; UsageError: as `conditions`.
    """
    tried = conditions(url=url, text=text, key=key, source_key=source_key)
    for condition, what in tried:
        first, lines, numbers = list[Found](), list[list[str]](), [0, 0]
        with terminal.progress_bar("searching", rows.files(run), "files") as advance:
            # side-cars have no broken records
            kept = () if "file" in condition.columns else rows.samples(run, condition, advance)
            for number, some in enumerate((kept, rows.dropped(run, condition, advance))):
                for row in some:
                    numbers[number] += 1
                    if len(first) < MOST:
                        first.append(row)
                        lines.append(of_row(run, row))
        if first:
            return Explanation(what, numbers[0], numbers[1], first, lines)
    if source_key is not None:  # as it was given, or with its input, as `remove` notes it
        sources = sorted({each.source for each in run.config.input})
        names = [image_id(each) for each in (source_key, *(f"{source}:{source_key}" for source in sources))]
    else:
        names = [image_id(one_url.parsed(url)[0]) if url is not None else (key or "").strip().lower()]
    if removed := rows.removed(run, pc.field("hash").isin(names)):
        return Explanation(tried[0][1], 0, 0, [], [_removed(row) for row in removed])
    raise NotFoundError(f"{run.folder}: nothing found with {tried[0][1]}")


def of_row(run: RunFolder, row: Found, fate: Callable[[str | None], str] | None = None) -> list[str]:
    """What happened to a row of a side-car or of dropped rows, line by line; `fate` says it of a key."""
    return [*_pair(run, row, fate or partial(_fate, run)), *_tries(run, row)]


def _removed(row: Mapping[str, Any]) -> list[str]:
    """What happened to a pair or an image that was removed, line by line."""
    lines = [f"{row['kind']:<9} {row['hash']}", f"removed   {row['time']}"]
    lines += [f"{name:<9} {row[name]}" for name in ("by", "because") if row[name]]
    if row["shard"]:
        lines.append(f"was in    shards/{row['shard']}.tar, row {row['row']}")
    elif row["stage"]:
        lines.append(f"was       dropped by {row['stage']}: {row['reason']}")
    return lines


def _line(name: str, what: str) -> str:
    return f"  {name:<{_WIDTH}} {what}"


def _pair(run: RunFolder, row: Found, fate: Callable[[str | None], str]) -> list[str]:
    """The pair, and what each stage did with it, line by line."""
    # runs of an earlier schema lack some columns
    lines = [f"{label:<9} {row[name]}" for name, label in _PAIR.items() if row.get(name) is not None]
    lines += [f"{'said':<9} {each}" for each in _said(row.get("preferences"))]
    if "stage" in row:
        names = [stage.value for stage in Stage]
        lines += [_line(name, "kept") for name in names[: names.index(row["stage"])]]
        lines.append(_line(row["stage"], f"dropped: {row['reason']}"))
        lines += [
            _line("", f"- {reason}: {_why(run, reason, row, fate)}") for reason in row["failed"] or [row["reason"]]
        ]
        return [*lines, _line("row in", row["in"])]
    lines += [_line(stage.value, "kept") for stage in stages_of(run.facts["stages"])]
    measured = f"{many(row['words'], 'word')}, {_size(row)} {row['format']}, {row['bytes']:,} bytes"
    return [*lines, _line("written", f"{row['in'].removesuffix('.parquet')}.tar, {measured}")]


def _said(statements: Sequence[Mapping[str, str | None]] | None) -> list[str]:
    """What rights holders said, a line each; one line where nothing was found, none where nobody looked."""
    if statements is None:
        return []
    found = [(each, ", ".join(filter(None, (each["where"], each["when"])))) for each in statements]
    return [f"{each['notation']}: {each['value']} ({place})" for each, place in found] or ["nothing about its use"]


def _tries(run: RunFolder, row: Found) -> list[str]:
    """The last `MOST` tries of fetching the image, if it came from the web."""
    if run.config.fetch.source != "web" or row.get("stage") in (Stage.EXTRACT, Stage.JUDGE):
        return []
    # names of logs begin with the number of a partition, a range of image_ids; those that may hold the image are read
    name, entries = str(row["image_id"]), list[Try]()
    counts = [1 << bits for bits in range(_PARTITIONS_AT_MOST.bit_length())]
    numbers = {int(name[:4], 16) * count >> 16 for count in counts}
    for log in storage.names(run.path("log", "fetch"), ".jsonl"):
        if int(log.partition("-")[0]) in numbers:
            with storage.open_read(run.path("log", "fetch", log)) as file:
                for line in (line for line in file if name.encode() in line):
                    with suppress(ValueError):  # a line cut by a kill
                        entries.append(json.loads(line))
    lines = []
    tries = sorted((each for each in entries if each.get("image_id") == name), key=lambda each: each["started"])
    for each in tries[-MOST:]:
        when = datetime.fromtimestamp(each["started"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        status = f" {each['status']}" if each["status"] else ""
        end = f"{each['reason']}{status}: {each['detail']}" if each["reason"] else f"fetched, {each['bytes']:,} bytes"
        end += f", at {each['address']}" if each["address"] else ""
        end += f", redirected to {each['url']}" if each["url"] != row["image_url"] else ""
        lines.append(_line("tried", f"{when} UTC, {each['seconds']:.2f} s: {end}"))
    return lines


def _why(run: RunFolder, reason: str, row: Found, fate: Callable[[str | None], str]) -> str:
    """The measured value and the setting that it was compared with."""
    if reason.startswith(OWN):
        return reason_words.of_own(Stage(row["stage"]), run.config)[reason]
    if reason.startswith(OF_SELECT) or (row["stage"] == Stage.SELECT and reason in run.conditions):
        scores = json.loads(row.get("scores") or "{}")  # the values that `select` decided by
        measured = "".join(f"; {name} = {'null' if value is None else value}" for name, value in scores.items())
        return f"{run.conditions.get(reason) or reason_words.of_select([reason])[reason]}{measured}"

    def cosine() -> str:
        similarity = row["similarity"]
        return "connected through other images with" if similarity is None else f"cosine {similarity:.4f} with"

    def cosine_above() -> str:
        settings = run.config.decontaminate
        if not settings.calibration:
            return f"[decontaminate] similarity_above = {settings.similarity_above}"
        above = run.json("audit", "near_duplicates", "calibration.json").get("similarity_above")
        return f"above {above} by [decontaminate] calibration = {settings.calibration!r}"

    values: dict[str, Callable[[], str]] = {
        "words": lambda: many(row["words"] or 0, "word"),
        "size": lambda: _size(row),
        "cosine": cosine,
        "cosine_above": cosine_above,
        "kept_row": lambda: fate(row["kept_key"]),
        "rare_ngrams": lambda: _rare_ngrams(run, row["caption"]),
        "no_url": lambda: _no_url(row["image_url"]),
        "personal": lambda: _personal(run, row["caption"]),
    }
    return reason_words.explained(reason, run.config, row, values)


def _size(row: Mapping[str, object]) -> str:
    return f"{row['width']} x {row['height']} px"


def _fate(run: RunFolder, key: str | None) -> str:
    """What became of the row for which another was dropped."""
    if key is None or rows.removed(run, (pc.field("kind") == "pair") & (pc.field("hash") == key)):
        return "was removed since, on request"
    has_key = Condition(pc.field("key") == key, ("key",))
    if sample := next(rows.samples(run, has_key), None):
        return f"was kept ({sample['source_key'] or 'in ' + sample['in']})"
    row = next((row for row in rows.dropped(run, has_key) if row["reason"] != DropReason.PAIR_REPEATED), None)
    return f"was dropped later: {row['reason']}" if row else "went on to the next stage"


def _no_url(url: str | None) -> str:
    """Why this is not the URL of an image."""
    if not url:
        return "it has no URL"
    try:
        return f"its scheme is {ada_url.URL(url).protocol.removesuffix(':')}, not http or https"
    except ValueError:
        return "it is not a valid URL (WHATWG)"


def _personal(run: RunFolder, caption: str) -> str:
    """The kinds of personal data that a caption was dropped for."""
    text = run.config.text
    found = personal.found(cast(pa.StringArray, pa.array([caption])), text.drop_personal, text.phone_countries)
    return ", ".join(personal.KINDS[kind] for kind, is_there in found.items() if is_there[0])


def _rare_ngrams(run: RunFolder, caption: str) -> str:
    """The unigrams and bigrams of a caption that are outside the vocabulary."""
    table = arrays.mapped(run.path("tables", "vocabulary.npy"))
    hashes = np.array(one_caption.ngram_hashes(caption), np.uint64)
    is_known = np.searchsorted(table, hashes) < np.searchsorted(table, hashes, "right")
    grams = zip(one_caption.ngrams_of(caption), is_known, strict=True)
    rare = list(dict.fromkeys(f'"{gram}"' for gram, known in grams if not known))
    return f"rare: {', '.join(rare[:10])}{f' and {len(rare) - 10} more' if len(rare) > 10 else ''}"
