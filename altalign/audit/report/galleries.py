"""Samples that a run chose by a hash: kept pairs, pairs of each reason, near-duplicates beside their test images."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.data.reasons import KEPT, Stage, stages_of
from altalign.pages import frame
from altalign.rules import own
from altalign.rules.reason_words import of_select

PICTURES_AT_MOST = 19_000_000  # bytes of data URIs
STRIP = 8  # pictures of a row at the top of the page
KINDS_OF_NEAR = ("just above", "just below", "dropped")  # in audit/near_duplicates/gallery.parquet


@dataclass
class Picture:
    """A thumbnail: its bytes, and whether the page has room for it."""

    data: bytes = field(repr=False)
    kind: str  # as browsers name its format
    is_shown: bool = True

    @classmethod
    def of(cls, data: bytes | None) -> "Picture | None":
        """The picture of a format that browsers show, by its first bytes; None of anything else."""
        if not data:
            return None
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return cls(data, "webp")
        heads = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}
        return next((cls(data, kind) for head, kind in heads.items() if data.startswith(head)), None)

    @property
    def uri(self) -> str:
        """The data URI, for `src`."""
        return frame.data_uri(self.data, self.kind)


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
    picture: Picture | None
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
    image: Picture | None
    test: Picture | None


@dataclass(frozen=True)
class Galleries:
    """All galleries; None if the run has no file for them."""

    samples: list[Gallery] | None
    near: dict[str, list[Near]] | None

    @property
    def strip(self) -> tuple[list[tuple[Gallery, Card]], list[tuple[Gallery, Card]]]:
        """Up to `STRIP` kept and as many dropped pictures for the top; of dropped ones, every reason takes turns."""
        kept, others = list[tuple[Gallery, Card]](), list[list[tuple[Gallery, Card]]]()
        for each in self.samples or []:
            cards = [(each, card) for card in each.cards if card.picture and card.picture.is_shown and not card.is_nsfw]
            if each.stage == KEPT:
                kept += cards
            else:
                others.append(cards)
        turns = [pair for turn in zip_longest(*others) for pair in turn if pair]
        return kept[:STRIP], turns[:STRIP]

    def fit(self, at_most: int = PICTURES_AT_MOST) -> None:
        """Shows pictures while there is room: the strip, the first of every gallery, the second of each, and so on."""
        rows = [[[card.picture] for card in gallery.cards] for gallery in self.samples or []]
        rows += [[[each.image, each.test] for each in pairs] for pairs in (self.near or {}).values()]
        left = at_most - sum(_bytes_in_page(card.picture) for cards in self.strip for _, card in cards)
        for turn in zip_longest(*rows, fillvalue=[]):
            for pictures in turn:  # all of these, or none if they do not fit
                needed = sum(map(_bytes_in_page, pictures))
                for picture in filter(None, pictures):
                    picture.is_shown = needed <= left
                left -= needed if needed <= left else 0


def _bytes_in_page(picture: Picture | None) -> int:
    return 4 * -(-len(picture.data) // 3) + 30 if picture else 0


def of_run(
    run: RunFolder, counts: Mapping[tuple[str, str], int], images: Mapping[tuple[str, str], int | None]
) -> Galleries:
    """Reads the galleries of a finished run; counts and distinct images are by stage and reason, kept ones as well."""
    pairs, near = run_rows.listed(run, GALLERY), None
    if pairs is not None:
        near = {kind: list[Near]() for kind in KINDS_OF_NEAR}
        for row in pairs:
            pictures = {"image": Picture.of(row["image"]), "test": Picture.of(row["test"])}
            near.setdefault(row.pop("kind"), []).append(Near(**{**row, **pictures}))
    galleries = Galleries(samples(run, counts, images), near)
    galleries.fit()
    return galleries


def samples(
    run: RunFolder, counts: Mapping[tuple[str, str], int], images: Mapping[tuple[str, str], int | None]
) -> list[Gallery] | None:
    """The kept pairs and those of each reason, in the order of stages; None if the run has no file for them."""
    rows = run_rows.listed(run, SAMPLES)
    if rows is None:
        return None
    by_reason: dict[tuple[str, str], list[Card]] = {}
    for row in rows:
        nsfw = row["nsfw_score"]
        card = Card(
            caption=row["caption"] or "",
            source=row["source"] or "",
            **{name: row[name] for name in ("image_url", "page_url", "source_key", "extra", "key")},
            failed=list(row["failed"] or []),
            measured=_measured(row),
            picture=Picture.of(row["picture"]),
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


def thumbnail(tar: str, offset: int, size: int, *, pixels_at_most: int) -> Picture | None:
    """A thumbnail of an image in a shard; None if it cannot be decoded, or not in this machine's memory."""
    from altalign.filters import pixels, thumbnails  # kernels, which notebooks need not wait for
    from altalign.machine import memory

    limits = {"colour": True, "pixels_at_most": pixels_at_most, "short_side_px": thumbnails.WEBP_SIDE_PX}
    data = storage.read_range(tar, offset, size)
    try:
        with memory.reserved(0 if memory.is_ample() else pixels.peak_bytes(data, **limits)):
            decoded = pixels.decode(data, **limits).pixels
    except MemoryError:
        return None
    return None if decoded is None else Picture(thumbnails.webp(decoded), "webp")
