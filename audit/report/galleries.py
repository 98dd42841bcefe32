"""Samples to look at: kept pairs, pairs dropped for each reason, near-duplicates beside their test images.

The run chose them by a hash of their content.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.audit_tables import GALLERY, SAMPLES
from altalign.reason_words import of_stage
from altalign.reasons import KEPT, Stage

PICTURES_AT_MOST = 19_000_000  # bytes of data URIs, which keep the page under 25 MB
_KINDS = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}
ABOVE, BELOW, GONE = "just above", "just below", "dropped"  # kinds of audit/near_duplicates/gallery.parquet


@dataclass
class Picture:
    """A thumbnail: its bytes, and whether the page has room for it."""

    data: bytes = field(repr=False)
    is_shown: bool = True

    @property
    def uri(self) -> str:
        """The data URI, for `src`."""
        return f"data:image/{_kind(self.data)};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class Card:
    """A pair to look at; its strings are untrusted and as they were found."""

    caption: str
    image_url: str | None
    page_url: str | None
    key: str | None
    failed: list[str]
    measured: list[tuple[str, str]]
    picture: Picture | None
    is_nsfw: bool


@dataclass(frozen=True)
class Gallery:
    """Samples of one reason of a stage, or of the kept pairs; `rows` is how many there are in all."""

    stage: str
    reason: str
    rows: int
    cards: list[Card]


@dataclass(frozen=True)
class Near:
    """An image of the pool beside a test image."""

    similarity: float
    shares_bucket: bool
    image_id: str
    image_url: str | None
    test_set: str
    test_image: str
    image: Picture | None
    test: Picture | None


@dataclass(frozen=True)
class Galleries:
    """All galleries; None if the run has no file for them."""

    samples: list[Gallery] | None
    near: dict[str, list[Near]] | None


def of_run(run: RunFolder, counts: dict[tuple[str, str], int]) -> Galleries:
    """Reads the galleries of a run.

    Args:
        run: the run, finished.
        counts: rows by stage and reason, as in counts.parquet.
    """
    found = Galleries(_samples(run, counts), _near(run))
    fit(found)
    return found


def _samples(run: RunFolder, counts: dict[tuple[str, str], int]) -> list[Gallery] | None:
    rows = files.rows(run, SAMPLES)
    if rows is None:
        return None
    by_reason: dict[tuple[str, str], list[Card]] = {}
    for row in rows:
        by_reason.setdefault((row["stage"], row["reason"]), []).append(_card(run, row))
    named = [(KEPT, KEPT), *((stage.value, reason) for stage in Stage for reason in of_stage(stage, run.config))]
    totals = counts | {(KEPT, KEPT): counts.get((Stage.DECONTAMINATE.value, KEPT), 0)}
    return [Gallery(*name, totals.get(name, 0), by_reason[name]) for name in named if name in by_reason]


def _card(run: RunFolder, row: dict[str, Any]) -> Card:
    nsfw = row["nsfw_score"]
    is_nsfw = nsfw is not None and nsfw >= run.config.image.nsfw.drop_at_or_above
    failed = list(row["failed"] or [])
    return Card(
        row["caption"] or "",
        row["image_url"],
        row["page_url"],
        row["key"],
        failed,
        list(_measured(row)),
        _picture(row["picture"]),
        is_nsfw,
    )


def _measured(row: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The measured values, each with its name."""
    if row["words"] is not None:
        yield "words", f"{row['words']:,}"
    for name, said in (("images_per_text", "images of the text"), ("texts_per_image", "texts of the image")):
        if row[name] is not None:
            yield said, f"{row[name]:,}"
    if row["http_code"] is not None:
        yield "HTTP status", f"{row['http_code']}"
    if row["width"] is not None and row["height"] is not None:
        short, long = sorted((row["width"], row["height"]))
        # cut, not rounded: it must not seem to reach a limit that it is below
        ratio = f", ratio {long * 100 // short / 100:.2f}" if short else ""
        yield "size", f"{row['width']:,} \u00d7 {row['height']:,} px{ratio}"
    for name, said in (("nsfw_score", "NSFW score"), ("similarity", "cosine")):
        if row[name] is not None:
            yield said, f"{row[name]:.4f}"
    if row["test_image"] is not None:
        yield "near", f"{row['test_set']}: {row['test_image']}"
    if row["kept_key"] is not None:
        yield "kept instead", row["kept_key"]
    if row["file"] is not None:
        yield "found in", row["file"] + ("" if row["offset"] is None else f", offset {row['offset']:,}")
    if row["error"] is not None:
        yield "error", row["error"]


def _near(run: RunFolder) -> dict[str, list[Near]] | None:
    rows = files.rows(run, GALLERY)
    if rows is None:
        return None
    found: dict[str, list[Near]] = {ABOVE: [], BELOW: [], GONE: []}
    for row in rows:
        pictures = {"image": _picture(row["image"]), "test": _picture(row["test"])}
        found.setdefault(row.pop("kind"), []).append(Near(**{**row, **pictures}))
    return found


# Pictures ------------------------------------------------------------------------------------------------------------


def _kind(data: bytes) -> str | None:
    """The format of an image that browsers show, told by its first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for head, kind in _KINDS.items() if data.startswith(head)), None)


def _picture(data: bytes | None) -> Picture | None:
    return Picture(data) if data and _kind(data) else None


def fit(found: Galleries, at_most: int = PICTURES_AT_MOST) -> None:
    """Shows pictures while there is room: the first of every gallery, then the second of each, and so on."""
    pairs = [[(each.image, each.test) for each in of_kind] for of_kind in (found.near or {}).values()]
    rows: list[list[tuple[Picture | None, ...]]] = [
        *([(card.picture,) for card in gallery.cards] for gallery in found.samples or []),
        *pairs,
    ]
    left = at_most
    for number in range(max(map(len, rows), default=0)):
        for row in rows:
            left = _take(row[number], left) if number < len(row) else left


def _take(pictures: Sequence[Picture | None], left: int) -> int:
    """Shows all of these pictures, or none if they do not fit; returns the bytes that are left."""
    there = [picture for picture in pictures if picture]
    needed = sum(4 * -(-len(picture.data) // 3) + 30 for picture in there)
    for picture in there:
        picture.is_shown = needed <= left
    return left - needed if needed <= left else left
