"""Stages that drop candidates, their reasons in the order in which the first that holds is *the* reason, and verdicts.

A verdict is an Arrow string: null keeps, a reason drops.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEPT = "kept"


class Stage(StrEnum):
    """The stages of a curation that receive, keep and drop candidates, in order."""

    EXTRACT = "extract"
    JUDGE = "judge"
    FETCH = "fetch"
    IMAGE = "image"
    DECONTAMINATE = "decontaminate"


class DropReason(StrEnum):
    """Why a candidate was dropped. Within a stage the order here is the order in which rules are asked."""

    RECORD_BROKEN = "record_broken"
    ALT_MISSING = "alt_missing"
    ALT_EMPTY = "alt_empty"
    URL_INVALID = "url_invalid"  # of extract for pages, of judge for tables

    TEXT_EMPTY = "text_empty"
    TEXT_TOO_SHORT = "text_too_short"
    TEXT_TOO_LONG = "text_too_long"
    TEXT_ON_TOO_MANY_IMAGES = "text_on_too_many_images"
    TEXT_HAS_RARE_NGRAM = "text_has_rare_ngram"
    IMAGE_HAS_TOO_MANY_TEXTS = "image_has_too_many_texts"
    PAIR_REPEATED = "pair_repeated"

    NOT_IN_ARCHIVE = "not_in_archive"
    HTTP_STATUS = "http_status"
    HTTP_TIMEOUT = "http_timeout"
    HTTP_UNREACHABLE = "http_unreachable"
    HTTP_BROKEN = "http_broken"
    HTTP_TOO_LARGE = "http_too_large"
    HTTP_OPT_OUT = "http_opt_out"
    HTTP_REFUSED = "http_refused"

    IMAGE_UNDECODABLE = "image_undecodable"
    IMAGE_DAMAGED = "image_damaged"
    IMAGE_TOO_MANY_PIXELS = "image_too_many_pixels"
    IMAGE_TOO_SMALL = "image_too_small"
    IMAGE_TOO_ELONGATED = "image_too_elongated"
    IMAGE_BLOCKED = "image_blocked"
    IMAGE_NSFW = "image_nsfw"

    NEAR_DUPLICATE_OF_TEST_IMAGE = "near_duplicate_of_test_image"
    NEAR_DUPLICATE_IN_POOL = "near_duplicate_in_pool"


REASONS: Mapping[Stage, tuple[DropReason, ...]] = {
    Stage.EXTRACT: (DropReason.RECORD_BROKEN, DropReason.ALT_MISSING, DropReason.ALT_EMPTY, DropReason.URL_INVALID),
    Stage.JUDGE: (
        DropReason.URL_INVALID,
        DropReason.TEXT_EMPTY,
        DropReason.TEXT_TOO_SHORT,
        DropReason.TEXT_TOO_LONG,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.TEXT_HAS_RARE_NGRAM,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
        DropReason.PAIR_REPEATED,
    ),
    Stage.FETCH: (
        DropReason.NOT_IN_ARCHIVE,
        DropReason.HTTP_STATUS,
        DropReason.HTTP_TIMEOUT,
        DropReason.HTTP_UNREACHABLE,
        DropReason.HTTP_BROKEN,
        DropReason.HTTP_TOO_LARGE,
        DropReason.HTTP_OPT_OUT,
        DropReason.HTTP_REFUSED,
    ),
    Stage.IMAGE: (
        DropReason.IMAGE_UNDECODABLE,
        DropReason.IMAGE_DAMAGED,
        DropReason.IMAGE_TOO_MANY_PIXELS,
        DropReason.IMAGE_TOO_SMALL,
        DropReason.IMAGE_TOO_ELONGATED,
        DropReason.IMAGE_BLOCKED,
        DropReason.IMAGE_NSFW,
    ),
    Stage.DECONTAMINATE: (DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE, DropReason.NEAR_DUPLICATE_IN_POOL),
}


def drop_where(mask: pa.BooleanArray, reason: DropReason) -> pa.StringArray:
    """Verdict of one rule: `reason` where `mask` holds, null elsewhere.

    Raises:
        ValueError: the mask has a null. `if_else(null, …)` is null, which would keep the row silently.
    """
    if mask.null_count:
        raise ValueError(f"{reason}: the mask has {mask.null_count} nulls; decide them (fill_null) before asking for a verdict")
    return pc.if_else(mask, pa.scalar(reason.value), pa.scalar(None, pa.string()))


def first_reason(verdicts: list[pa.StringArray]) -> pa.StringArray:
    """The one verdict of several, given in the order of `REASONS`: the first that is not null."""
    return pc.coalesce(*verdicts)


def all_reasons(verdicts: list[pa.StringArray]) -> "pa.ListArray[Any]":
    """Every reason that holds, row by row: a list of strings, empty where all verdicts are null.

    Args:
        verdicts: at least one and at most 63, each of one rule (it holds one reason, or nulls), of the same length.
    """
    held = pc.shift_left(verdicts[0].is_valid().cast(pa.int64()), 0)
    for bit, verdict in enumerate(verdicts[1:], start=1):
        held = pc.add(held, pc.shift_left(verdict.is_valid().cast(pa.int64()), bit))
    which = held.dictionary_encode()
    reasons = [pc.first(verdict.drop_null()).as_py() for verdict in verdicts]
    combinations = [[reason for bit, reason in enumerate(reasons) if (bits or 0) >> bit & 1] for bits in which.dictionary.to_pylist()]
    lists: Any = pa.array(combinations, pa.list_(pa.string()))
    return lists.take(which.indices)
