"""Samples that a run chose by a hash: kept pairs, pairs of each reason, near-duplicates beside their test images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.data.reasons import KEPT, Stage, stages_of
from altalign.pages import frame
from altalign.rules import own
from altalign.rules.reason_words import of_select

PICTURES_AT_MOST = 19_000_000  # bytes of data URIs
KINDS_OF_NEAR = ("just above", "just below", "dropped")  # in audit/near_duplicates/gallery.parquet
_HEADS = {b"RIFF": "webp", b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}  # of formats that browsers show

# A data URI; empty of one that the page has no room for, None where there is none.
Picture = str | None


@dataclass(frozen=True)
class Card:
    """A pair to look at; its strings are untrusted and as they were found."""

    caption: str
    image_url: str | None
    page_url: str | None
    source: str
    source_key: str | None
    extra: str | None
    key: str | None
    failed: list[str]
    measured: list[tuple[str, str]]
    picture: Picture = field(repr=False)
    is_nsfw: bool


@dataclass(frozen=True)
class Gallery:
    """Samples of one reason of a stage, or of the kept pairs."""

    stage: str  # its name, or `kept`
    reason: str  # likewise
    rows: int  # how many pairs there are in all
    images: int | None  # how many distinct images these have; None if it is not known
    cards: list[Card]  # some of the pairs, each of another image if there are images


@dataclass(frozen=True)
class Near:
    """An image of the pool beside a test image."""

    similarity: float
    shares_bucket: bool
    image_id: str
    image_url: str | None
    test_set: str
    test_image: str
    image: Picture = field(repr=False)
    test: Picture = field(repr=False)


def within(at_most: int) -> Callable[[bytes | None], Picture]:
    """A function that gives pictures while they have at most so many bytes together."""
    left = at_most

    def picture(data: bytes | None) -> Picture:
        nonlocal left
        kind = next((kind for head, kind in _HEADS.items() if data and data.startswith(head)), None)
        if data is None or kind is None:
            return None
        uri = frame.data_uri(data, kind)
        if len(uri) > left:
            return ""
        left -= len(uri)
        return uri

    return picture


def near(run: RunFolder, picture: Callable[[bytes | None], Picture]) -> dict[str, list[Near]] | None:
    """Near-duplicates of test images by kind; None if the run has no file for them."""
    pairs = run_rows.listed(run, GALLERY)
    if pairs is None:
        return None
    kinds = {kind: list[Near]() for kind in KINDS_OF_NEAR}
    for row in pairs:
        pictures = {"image": picture(row["image"]), "test": picture(row["test"])}
        kinds.setdefault(row.pop("kind"), []).append(Near(**{**row, **pictures}))
    return kinds


def samples(
    run: RunFolder,
    counts: Mapping[tuple[str, str], int],
    images: Mapping[tuple[str, str], int | None],
    picture: Callable[[bytes | None], Picture],
    reason: str = "",
) -> list[Gallery] | None:
    """The kept pairs and those of each reason, or of one, in the order of stages; None if the run has no file for them.

    Counts and distinct images are by stage and reason.
    """
    rows = run_rows.listed(run, SAMPLES)
    if rows is None:
        return None
    by_reason: dict[tuple[str, str], list[Card]] = {}
    for row in (row for row in rows if reason in ("", row["reason"])):
        nsfw = row["nsfw_score"]
        card = Card(
            caption=row["caption"] or "",
            source=row["source"] or "",
            **{name: row[name] for name in ("image_url", "page_url", "source_key", "extra", "key")},
            failed=list(row["failed"] or []),
            measured=_measured(row),
            picture=picture(row["picture"]),
            is_nsfw=nsfw is not None and nsfw >= run.config.image.nsfw.drop_at_or_above,
        )
        by_reason.setdefault((row["stage"], row["reason"]), []).append(card)
    stages = stages_of(stage for stage, _ in counts)
    named = [(KEPT, KEPT), *((stage.value, reason) for stage in stages for reason in own.reasons(stage, run.config))]
    named += [(Stage.SELECT.value, reason) for reason in of_select(sorted(reason for _, reason in by_reason))]
    totals = {**counts, (KEPT, KEPT): counts.get((stages[-1].value, KEPT), 0)}
    existing = [name for name in dict.fromkeys(named) if name in by_reason]
    return [Gallery(*name, totals.get(name, 0), images.get(name), by_reason[name]) for name in existing]


def _measured(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The measured values, each with its name."""
    size = None
    if row["width"] is not None and row["height"] is not None:
        short, long = sorted((row["width"], row["height"]))
        # cut, not rounded: it must not seem to reach a limit that it is below
        ratio = f", ratio {long * 100 // short / 100:.2f}" if short else ""
        size = f"{row['width']:,} \u00d7 {row['height']:,} px{ratio}"
    values = [
        ("words", row["words"]),
        ("images of the text", row["images_per_text"]),
        ("texts of the image", row["texts_per_image"]),
        ("HTTP status", row["http_code"] and str(row["http_code"])),
        ("size", size),
        ("NSFW score", row["nsfw_score"]),
        ("cosine", row["similarity"]),
        ("near", row["test_image"] and f"{row['test_set']}: {row['test_image']}"),
        ("kept instead", row["kept_key"]),
        ("found in", row["file"] and row["file"] + ("" if row["offset"] is None else f", offset {row['offset']:,}")),
        ("error", row["error"]),
    ]
    forms = {int: "{:,}", float: "{:.4f}", str: "{}"}
    return [(name, forms[type(value)].format(value)) for name, value in values if value is not None]
