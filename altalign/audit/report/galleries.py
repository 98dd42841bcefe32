"""Samples to look at: kept pairs, pairs dropped for each reason, near-duplicates beside their test images.

The run chose them by a hash of their content.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import cast

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import GALLERY, SAMPLES
from altalign.data.reasons import KEPT, Stage, stages_of
from altalign.data.schema import DroppedRow
from altalign.pages import frame
from altalign.rules.reason_words import of_select, of_stage

PICTURES_AT_MOST = 19_000_000  # bytes of data URIs, which keep the page under 25 MB
_KINDS = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}
STRIP = 8  # pictures of a row at the top of the page
ABOVE, BELOW, GONE = "just above", "just below", "dropped"  # kinds of audit/near_duplicates/gallery.parquet


class ShownRow(DroppedRow):
    """A row of `SAMPLES`."""

    picture: bytes | None


@dataclass
class Picture:
    """A thumbnail: its bytes, and whether the page has room for it."""

    data: bytes = field(repr=False)
    is_shown: bool = True

    @property
    def uri(self) -> str:
        """The data URI, for `src`."""
        return frame.data_uri(self.data, str(_kind(self.data)))  # a picture is of one that browsers show


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
    """Samples of one reason of a stage, or of the kept pairs.

    Attributes:
        stage: its name, or `kept`.
        reason: its name, or `kept`.
        rows: how many pairs there are in all.
        images: how many distinct images these have; None if it is not known.
        cards: some of the pairs, each of another image if there are images.
    """

    stage: str
    reason: str
    rows: int
    images: int | None
    cards: list[Card]

    @property
    def is_of_images(self) -> bool:
        """Whether each card has an image of its own: a rule on images dropped it, or it was kept."""
        return self.stage in (KEPT, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)


@dataclass(frozen=True)
class Shot:
    """A card of the strip at the top, with the gallery that it comes from."""

    stage: str
    reason: str
    card: Card


@dataclass(frozen=True)
class Strip:
    """Pictures for the top of the page."""

    kept: list[Shot]
    dropped: list[Shot]


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
    def strip(self) -> Strip:
        """Up to `STRIP` kept and dropped pictures; of dropped ones, those of every reason take turns."""
        shots = [
            [Shot(each.stage, each.reason, card) for card in each.cards if _may_stand_at_the_top(card)]
            for each in self.samples or []
        ]
        kept = [shot for of_gallery in shots for shot in of_gallery if shot.stage == KEPT]
        others = [of_gallery for of_gallery in shots if of_gallery and of_gallery[0].stage != KEPT]
        turns = [shot for turn in zip_longest(*others) for shot in turn if shot]
        return Strip(kept[:STRIP], turns[:STRIP])

    @property
    def sources(self) -> list[str]:
        """The sources of all samples, sorted."""
        return sorted({card.source for each in self.samples or [] for card in each.cards})


def _may_stand_at_the_top(card: Card) -> bool:
    return card.picture is not None and card.picture.is_shown and not card.is_nsfw


def of_run(
    run: RunFolder, counts: Mapping[tuple[str, str], int], images: Mapping[tuple[str, str], int | None]
) -> Galleries:
    """Reads the galleries of a run.

    Args:
        run: the run, finished.
        counts: rows by stage and reason, as in counts.parquet.
        images: distinct images that were dropped, by stage and reason, and those that were kept.
    """
    found = Galleries(samples(run, counts, images), _near(run))
    fit(found)
    return found


def samples(
    run: RunFolder, counts: Mapping[tuple[str, str], int], images: Mapping[tuple[str, str], int | None]
) -> list[Gallery] | None:
    """The kept pairs and those of each reason, in the order of stages; None if the run has no file for them."""
    rows = files.rows(run, SAMPLES)
    if rows is None:
        return None
    by_reason: dict[tuple[str, str], list[Card]] = {}
    for row in cast(list[ShownRow], rows):
        by_reason.setdefault((row["stage"], row["reason"]), []).append(_card(run, row))
    stages = stages_of(stage for stage, _ in counts)
    named = [(KEPT, KEPT), *((stage.value, reason) for stage in stages for reason in of_stage(stage, run.config))]
    named += [(Stage.SELECT.value, reason) for reason in of_select(sorted(reason for _, reason in by_reason))]
    totals = {**counts, (KEPT, KEPT): counts.get((stages[-1].value, KEPT), 0)}
    there = [name for name in dict.fromkeys(named) if name in by_reason]
    return [Gallery(*name, totals.get(name, 0), images.get(name), by_reason[name]) for name in there]


def _card(run: RunFolder, row: ShownRow) -> Card:
    nsfw = row["nsfw_score"]
    is_nsfw = nsfw is not None and nsfw >= run.config.image.nsfw.drop_at_or_above
    failed = list(row["failed"] or [])
    return Card(
        row["caption"] or "",
        row["image_url"],
        row["page_url"],
        row["source"] or "",
        row["source_key"],
        row["extra"],
        row["key"],
        failed,
        list(_measured(row)),
        _picture(row["picture"]),
        is_nsfw,
    )


def _measured(row: ShownRow) -> Iterable[tuple[str, str]]:
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
    """Shows pictures while there is room: the strip, the first of every gallery, the second of each, and so on."""
    pairs = [[(each.image, each.test) for each in of_kind] for of_kind in (found.near or {}).values()]
    rows: list[list[tuple[Picture | None, ...]]] = [
        *([(card.picture,) for card in gallery.cards] for gallery in found.samples or []),
        *pairs,
    ]
    strip = found.strip
    left = at_most - _bytes([shot.card.picture for shot in (*strip.kept, *strip.dropped)])
    for number in range(max(map(len, rows), default=0)):
        for row in rows:
            left = _take(row[number], left) if number < len(row) else left


def _take(pictures: Sequence[Picture | None], left: int) -> int:
    """Shows all of these pictures, or none if they do not fit; returns the bytes that are left."""
    needed = _bytes(pictures)
    for picture in pictures:
        if picture:
            picture.is_shown = needed <= left
    return left - needed if needed <= left else left


def _bytes(pictures: Sequence[Picture | None]) -> int:
    """How many bytes the data URIs of these pictures take."""
    return sum(4 * -(-len(picture.data) // 3) + 30 for picture in pictures if picture)
