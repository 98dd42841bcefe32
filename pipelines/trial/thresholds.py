"""Pairs of a trial that are nearest to each threshold, on both sides, to look at."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.curation import CurateConfig
from altalign.pipelines.evidence import gallery_rows
from altalign.pipelines.files import parquet
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts.fetched import FETCHED, Fetched
from altalign.pipelines.run.artefacts.judged import JudgedUnit
from altalign.pipelines.run.sampled import Sampled
from altalign.reasons import DropReason, Stage
from altalign.trial_page import Sample, Threshold

_OF_SIDE = 6
_UNITS_AT_MOST = 32  # of a sample, that pairs are looked for in
_COLUMNS = (
    "image_id",
    "image_url",
    "caption",
    "words",
    "width",
    "height",
    "nsfw_score",
    "similarity",
    "images_per_text",
    "texts_per_image",
)

Row = dict[str, Any]


class _Rule(NamedTuple):
    """A rule with a threshold: its setting, reason, value there, and the value of a row in words."""

    setting: str
    reason: DropReason
    at: float
    value: Callable[[Row], float | None]
    said: str


def _rules(config: CurateConfig) -> list[_Rule]:
    text, image = config.text, config.image

    def of(name: str) -> Callable[[Row], float | None]:
        return lambda row: row[name]

    def side(row: Row) -> float | None:
        return min(row["width"], row["height"]) if row["width"] else None

    def aspect(row: Row) -> float | None:
        return max(row["width"], row["height"]) / min(row["width"], row["height"]) if row["width"] else None

    near, score = config.decontaminate.similarity_above, image.nsfw.drop_at_or_above
    shared, captioned = text.images_per_text_at_most, image.texts_per_image_at_most
    return [
        _Rule("text.words_at_least", DropReason.TEXT_TOO_SHORT, text.words_at_least, of("words"), "{:.0f} words"),
        _Rule("text.words_at_most", DropReason.TEXT_TOO_LONG, text.words_at_most, of("words"), "{:.0f} words"),
        _Rule(
            "text.images_per_text_at_most",
            DropReason.TEXT_ON_TOO_MANY_IMAGES,
            shared,
            of("images_per_text"),
            "on {:,.0f} images",
        ),
        _Rule(
            "image.texts_per_image_at_most",
            DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
            captioned,
            of("texts_per_image"),
            "{:,.0f} texts",
        ),
        _Rule("image.short_side_above_px", DropReason.IMAGE_TOO_SMALL, image.short_side_above_px, side, "{:,.0f} px"),
        _Rule("image.aspect_ratio_below", DropReason.IMAGE_TOO_ELONGATED, image.aspect_ratio_below, aspect, "{:.2f}"),
        _Rule("image.nsfw.drop_at_or_above", DropReason.IMAGE_NSFW, score, of("nsfw_score"), "score {:.3f}"),
        _Rule(
            "decontaminate.similarity_above",
            DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE,
            near,
            of("similarity"),
            "cosine {:.4f}",
        ),
    ]


def of_sample(sample: Sampled) -> list[Threshold]:
    """For each rule with a threshold the nearest pairs, where there are any that it dropped."""
    dropped = dict[str, list[Row]]()
    for row in _dropped(sample):
        dropped.setdefault(row["reason"], []).append(row)
    kept, found = list(_kept(sample)), list[Threshold]()
    for rule in _rules(sample.config):
        gone = _nearest(sample, rule, dropped.get(rule.reason.value, []))
        if gone:
            found.append(Threshold(rule.setting, f"{rule.at:g}", _nearest(sample, rule, kept), gone))
    return found


def _nearest(sample: Sampled, rule: _Rule, rows: Sequence[Row]) -> list[Sample]:
    measured = [(value, row) for row in rows if (value := rule.value(row)) is not None]
    measured.sort(key=lambda entry: (abs(entry[0] - rule.at), entry[1]["image_id"] or ""))
    return [
        Sample(
            rule.said.format(value),
            row["caption"] or "",
            row["image_url"],
            _picture(sample, row),
            is_nsfw=(row["nsfw_score"] or 0) >= sample.config.image.nsfw.drop_at_or_above,
        )
        for value, row in measured[:_OF_SIDE]
    ]


def _picture(sample: Sampled, row: Row) -> bytes | None:
    if not row.get("size"):
        return None
    data = Fetched(sample, row["unit"]).image(row["offset"], row["size"])
    return gallery_rows.picture(data, pixels_at_most=sample.config.image.pixels_at_most)


def _kept(sample: Sampled) -> Iterator[Row]:
    """The pairs that pass the image rules, one an image."""
    for name in sample.finished(FETCHED.step)[:_UNITS_AT_MOST]:
        rows = Fetched(sample, name).kept_images()
        for row in _rows(rows, ("blob_offset", "blob_bytes")):
            yield {**row, "unit": name, "offset": row["blob_offset"], "size": row["blob_bytes"]}


def _dropped(sample: Sampled) -> Iterator[Row]:
    """Dropped rows of the whole run's text rules, of which units have kept some, and of the sample's images."""
    assert sample.of
    for name in sample.of.finished(JudgedUnit.step):
        if storage.exists(path := JudgedUnit(sample.of, name).samples):
            yield from _rows(parquet.read_table(path), ("reason",))
    for name, facts in sample.all_facts(FETCHED):
        places = {image_id: (offset, size) for image_id, offset, size in facts.pictures}
        for stage in (Stage.IMAGE, Stage.DECONTAMINATE):
            if storage.exists(path := outputs.dropped(sample, stage, name)):
                rows = parquet.read_table(path)
                for row in _rows(rows, ("reason",)):
                    offset, size = places.get(row["image_id"], (0, 0))
                    if size or stage is Stage.DECONTAMINATE:
                        yield {**row, "unit": name, "offset": offset, "size": size}


def _rows(rows: pa.Table, more: Sequence[str]) -> list[Row]:
    there = [name for name in (*_COLUMNS, *more) if name in rows.column_names]
    return [dict.fromkeys(_COLUMNS) | row for row in rows.select(there).to_pylist()]
