"""Stages that drop candidates, their reasons, and verdicts.

The reasons of a stage are in order: the first that holds is *the* reason. A verdict is a column of Arrow strings: null
keeps, a reason drops. Its type is a dictionary, which takes a byte per row however many are dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

KEPT = "kept"

Verdict: TypeAlias = "pa.DictionaryArray[Any, Any]"


class Stage(StrEnum):
    """The stages that receive, keep and drop candidates, in order: those of a curation, and then `select`.

    The last one is only of runs that were made from another run.
    """

    EXTRACT = "extract"
    JUDGE = "judge"
    FETCH = "fetch"
    IMAGE = "image"
    DECONTAMINATE = "decontaminate"
    SELECT = "select"


CURATED = tuple(stage for stage in Stage if stage is not Stage.SELECT)  # the stages of a curation


def stages_of(counted: Iterable[str]) -> tuple[Stage, ...]:
    """The stages of a run, by the names of those that counted anything: `select` only where it did."""
    return (*CURATED, *([Stage.SELECT] if Stage.SELECT.value in {*counted} else []))


class DropReason(StrEnum):
    """Why a candidate was dropped. Within a stage the order here is the order in which rules are asked.

    The docstrings are in docs/reference/reasons.md (`make docs`); the first setting that a docstring names is the limit
    of the rule.
    """

    RECORD_BROKEN = "record_broken"
    """An archive record, line or row cannot be read. With `skip_unreadable` also a whole file, counted as one."""
    ALT_MISSING = "alt_missing"
    """The image element has no `alt`."""
    ALT_EMPTY = "alt_empty"
    """Nothing is left of the `alt` after cleaning."""
    URL_TOO_LONG = "url_too_long"
    """The URL of the image, or of its page, has more than 8 KiB once it is resolved; what is kept of it is cut."""
    URL_INVALID = "url_invalid"
    """Pages: no http(s) URL, or one that a WHATWG parser refuses. Tables and tars: neither a valid URL nor an image in
    hand."""

    TEXT_EMPTY = "text_empty"
    """Nothing is left of the caption after cleaning. Tables and tars only; on pages this is `alt_empty`."""
    TEXT_TOO_LARGE = "text_too_large"
    """The caption has more bytes than `text.bytes_at_most`; readers cut what is above 64 KiB."""
    TEXT_TOO_SHORT = "text_too_short"
    """Fewer words than `text.words_at_least`."""
    TEXT_TOO_LONG = "text_too_long"
    """More words than `text.words_at_most`."""
    TEXT_ON_TOO_MANY_IMAGES = "text_on_too_many_images"
    """The folded caption is on more distinct images of the pool than `text.images_per_text_at_most`; of merged runs, of
    all their pools."""
    TEXT_HAS_RARE_NGRAM = "text_has_rare_ngram"
    """A unigram or bigram is not among the `text.vocabulary_size` most frequent of the pool."""
    IMAGE_HAS_TOO_MANY_TEXTS = "image_has_too_many_texts"
    """The image has more distinct folded captions in the pool than `image.texts_per_image_at_most`; of merged runs, in
    all their pools."""
    ROW_TOO_LARGE = "row_too_large"
    """`keep_columns` have more than 64 KiB in this row, and are left out (`{}`); or a table's image has more bytes than
    `fetch.bytes_at_most`."""
    PAIR_REPEATED = "pair_repeated"
    """The same image and caption once more, also in another one of runs that are merged. Decided among rows that pass
    all other rules of this stage; `kept_key` names the pair that stays."""

    NOT_IN_ARCHIVE = "not_in_archive"
    """No archive, tar or table of the run holds the image, where `fetch.source` looks for it."""
    HTTP_STATUS = "http_status"
    """The final status is not 200, or there were more than 10 redirects."""
    HTTP_TIMEOUT = "http_timeout"
    """Slower than `fetch.timeout_s`, or not there when its unit ran out of time (`fetch.unit_deadline_s`)."""
    HTTP_NOT_ASKED = "http_not_asked"
    """Never asked for: its host was given up or wanted to be left alone, or its unit ran out of time."""
    HTTP_UNREACHABLE = "http_unreachable"
    """DNS, connection or TLS failed."""
    HTTP_BROKEN = "http_broken"
    """The answer is reset, cut short, empty or badly encoded, or breaks the protocol."""
    HTTP_TOO_LARGE = "http_too_large"
    """More bytes than `fetch.bytes_at_most`."""
    HTTP_OPT_OUT = "http_opt_out"
    """A header (`fetch.honour_opt_out`) or robots.txt (`fetch.honour_robots`) forbids it."""
    HTTP_REFUSED = "http_refused"
    """Its address (`fetch.allow_addresses`), port (`fetch.ports`) or scheme is not allowed, or its domain is blocked
    (`fetch.blocked_domains`)."""
    URL_BLOCKED = "url_blocked"
    """A file of `fetch.blocked_urls` lists the hash of its URL, or of one that it redirects to; it is not asked for."""

    IMAGE_UNDECODABLE = "image_undecodable"
    """The first bytes are of no image format that is read: JPEG 2000, JPEG XL, SVG, HTML, nothing at all; HEIC
    without the extra `heif`."""
    IMAGE_DAMAGED = "image_damaged"
    """The format is known, but the image does not decode completely."""
    IMAGE_TOO_MANY_PIXELS = "image_too_many_pixels"
    """More pixels than `image.pixels_at_most`; never decoded."""
    IMAGE_TOO_SMALL = "image_too_small"
    """The short side is not above `image.short_side_above_px`."""
    IMAGE_TOO_ELONGATED = "image_too_elongated"
    """Long side / short side is not below `image.aspect_ratio_below`."""
    IMAGE_BLOCKED = "image_blocked"
    """A file of `image.blocked_hashes` lists its hash."""
    IMAGE_NSFW = "image_nsfw"
    """The classifier's score is at or above `image.nsfw.drop_at_or_above`. Off without a model."""

    NEAR_DUPLICATE_OF_TEST_IMAGE = "near_duplicate_of_test_image"
    """Closer to a test image than `decontaminate.similarity_above`."""
    NEAR_DUPLICATE_IN_POOL = "near_duplicate_in_pool"
    """Close to another image of the pool (`dedup.within_pool`)."""

    NOT_LISTED = "not_listed"
    """A run was made of the pairs in a list, and this one is not in it."""
    OUT_OF_BALANCE = "out_of_balance"
    """Its concepts are frequent, and `altalign select` with `--balance` did not draw its lot; or it has none."""
    REMOVED = "removed"
    """`altalign remove` has taken it out of the run, which keeps its hash alone. In `fetch`: `altalign add` has not
    asked for its image again."""


REASONS: Mapping[Stage, tuple[DropReason, ...]] = {
    Stage.EXTRACT: (
        DropReason.RECORD_BROKEN,
        DropReason.ALT_MISSING,
        DropReason.ALT_EMPTY,
        DropReason.URL_TOO_LONG,
        DropReason.URL_INVALID,
    ),
    Stage.JUDGE: (
        DropReason.URL_TOO_LONG,
        DropReason.URL_INVALID,
        DropReason.TEXT_EMPTY,
        DropReason.TEXT_TOO_LARGE,
        DropReason.TEXT_TOO_SHORT,
        DropReason.TEXT_TOO_LONG,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.TEXT_HAS_RARE_NGRAM,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
        DropReason.ROW_TOO_LARGE,
        DropReason.PAIR_REPEATED,
    ),
    Stage.FETCH: (
        DropReason.NOT_IN_ARCHIVE,
        DropReason.ROW_TOO_LARGE,
        DropReason.HTTP_STATUS,
        DropReason.HTTP_TIMEOUT,
        DropReason.HTTP_NOT_ASKED,
        DropReason.HTTP_UNREACHABLE,
        DropReason.HTTP_BROKEN,
        DropReason.HTTP_TOO_LARGE,
        DropReason.HTTP_OPT_OUT,
        DropReason.HTTP_REFUSED,
        DropReason.URL_BLOCKED,
        DropReason.REMOVED,
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
    Stage.SELECT: (
        DropReason.NOT_LISTED,
        DropReason.OUT_OF_BALANCE,
        DropReason.REMOVED,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
        DropReason.PAIR_REPEATED,
    ),
}


# Failures that a later try may mend. Final answers are not asked for again: a status other than 429 and 5xx, an opt-out
# and a refusal.
PASSING = (
    DropReason.HTTP_NOT_ASKED,
    DropReason.HTTP_TIMEOUT,
    DropReason.HTTP_UNREACHABLE,
    DropReason.HTTP_BROKEN,
)


def may_pass(reason: str | None, http_code: int | None) -> bool:
    """Whether a later try may mend a failure: what `altalign retry` asks for again."""
    return reason in PASSING or (
        reason == DropReason.HTTP_STATUS and (http_code == 429 or 500 <= (http_code or 0) < 600)
    )


OWN = "own:"  # begins the reasons of rules of a run's own

# Begin the reasons of `altalign select`; a score or column follows, or the number of a condition.
OF_SELECT = ("score_below:", "score_above:", "score_missing:", "not_in_top:", "not_where:")


def own_reason(name: str) -> str:
    """The reason of a rule of a run's own, by the name of its function or its entry in `filters`."""
    return OWN + name.rpartition(":")[2]


def order_of(stage: Stage, reason: str) -> tuple[int, str]:
    """The place of a reason in its stage: rules of a run's own follow the built-in ones, and those of scores, by name.

    Raises:
        ValueError: the stage has no such reason.
    """
    is_own = reason.startswith(OWN) and stage in (Stage.JUDGE, Stage.IMAGE)
    if is_own or (stage is Stage.SELECT and reason.startswith(OF_SELECT)):
        return len(REASONS[stage]), reason
    return REASONS[stage].index(DropReason(reason)), ""


def drop_where(mask: pa.BooleanArray, reason: str) -> Verdict:
    """Verdict of one rule: `reason` where `mask` holds, null elsewhere.

    Raises:
        ValueError: the mask has a null, which would keep the row silently.
    """
    if mask.null_count:
        raise ValueError(
            f"{reason}: the mask has {mask.null_count} nulls; decide them (fill_null) before asking for a verdict"
        )
    # All indices are 0; the bits of the mask serve as the validity bitmap.
    buffers = [mask.buffers()[1], pa.py_buffer(bytes(mask.offset + len(mask)))]
    indices = pa.Array.from_buffers(pa.int8(), len(mask), buffers, offset=mask.offset)
    return pa.DictionaryArray.from_arrays(indices, pa.array([str(reason)], pa.string()))


def reasons_of(verdicts: Sequence[Verdict]) -> tuple[Verdict, "pa.DictionaryArray[Any, Any]"]:
    """The final verdict of n rows, and every reason that holds for each.

    Args:
        verdicts: at least one and at most 63, each of one rule (its dictionary has one reason), of the same length, in
            the order of `REASONS`, rules of a run's own last.

    Returns:
        The first verdict that is not null (dictionary<string>[n]), and all reasons that hold
        (dictionary<list<string>>[n], with one entry for each combination that occurs).

    Raises:
        ValueError: the dictionary of a verdict has two reasons.
    """
    kind = pa.uint8() if len(verdicts) <= 8 else pa.uint16() if len(verdicts) <= 16 else pa.uint64()
    held: Any = pa.repeat(cast(Any, pa.scalar(0, kind)), len(verdicts[0]))
    reasons = [_only_reason(verdict) for verdict in verdicts]
    for bit, verdict in enumerate(verdicts):
        if verdict.null_count < len(verdict):  # in most batches, most rules hold for no row
            held = pc.bit_wise_or(held, pc.if_else(verdict.is_valid(), pa.scalar(1 << bit, kind), pa.scalar(0, kind)))
    which = held.dictionary_encode()
    combinations = [[bit for bit in range(len(reasons)) if bits >> bit & 1] for bits in which.dictionary.to_pylist()]
    first = pa.array([next(iter(combination), None) for combination in combinations], pa.int8())
    every = pa.array([[reasons[bit] for bit in combination] for combination in combinations], pa.list_(pa.string()))
    of_reasons = pa.DictionaryArray.from_arrays(first.take(which.indices), pa.array(reasons, pa.string()))
    return of_reasons, pa.DictionaryArray.from_arrays(which.indices, every)


def _only_reason(verdict: Verdict) -> str:
    reason, *others = cast(Any, verdict.dictionary).to_pylist()
    if others:
        raise ValueError(f"a verdict of {reason} knows {', '.join(others)} too; give each rule a verdict of its own")
    return reason
