"""Stages that drop candidates, their reasons in order, and verdicts.

The reasons of a stage are in order: the first that holds is *the* reason. A rule on columns gives its name (`RULES`);
`DropReason` has the reasons that code gives while it reads, fetches, searches and selects. A verdict is a column of
Arrow strings: null keeps, a reason drops. Its type is a dictionary, which takes a byte a row however many are dropped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters import image, text
from altalign.rules.rule import Columns, Paper, Rule, Words

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


def _opt_out(name: str, where: str) -> Words:
    """The words of a notation by which rights holders oppose a use."""
    plain = where.replace("`", "")
    return Words(
        f"opt_out_{name}",
        f"{where[0].upper()}{where[1:]} opposes the purpose (`fetch.purpose`).",
        explain=f"{plain} opposes it, [fetch] purpose = {{config.fetch.purpose}}",
        card=f"{plain} opposes the purpose",
    )


class DropReason(StrEnum):
    """Reasons that code gives by name, with their words; those of rules on columns are the names of `RULES`."""

    _value_: str
    words: Words

    def __new__(cls, words: Words) -> Self:
        """A reason, made of its words."""
        reason = str.__new__(cls, words.reason)
        reason._value_, reason.words = words.reason, words
        return reason

    RECORD_BROKEN = Words(
        "record_broken",
        "An archive record, line or row cannot be read. With `skip_unreadable` also a whole file, counted as one.",
        explain="{row[error]} ({row[file]}, offset {row[offset]})",
        card="a record that cannot be read",
        why="Records that cannot be read are counted, too.",
    )
    ALT_MISSING = Words(
        "alt_missing",
        "The image element has no `alt`.",
        explain="the element has no alt",
        card="an image without alt-text",
        why="No caption, no pair.",
    )
    ALT_EMPTY = Words(
        "alt_empty",
        "Nothing is left of the `alt` after cleaning.",
        explain="its alt is empty or white space",
        card="an empty alt-text",
        why="No caption, no pair.",
    )
    PAIR_REPEATED = Words(
        "pair_repeated",
        "The same image and caption once more, also in another one of runs that are merged. Decided among rows that "
        "pass all other rules of this stage; `kept_key` names the pair that stays.",
        explain="another row has the same image and caption, hence the same key; that row {kept_row}",
        card="the same pair once more",
        why="A repeated pair only adds weight.",
    )
    NOT_IN_ARCHIVE = Words(
        "not_in_archive",
        "No archive, tar or table of the run holds the image, where `fetch.source` looks for it.",
        explain="no archive of the run has the image's URL",
        card="no input holds the image",
    )
    ROW_TOO_LARGE = text.row_too_large.words  # also of images in tables
    HTTP_STATUS = Words(
        "http_status",
        "The final status is not 200, or there were more than 10 redirects.",
        explain="the last status was {row[http_code]}",
        card="the server's answer was another status than 200",
    )
    HTTP_TIMEOUT = Words(
        "http_timeout",
        "Slower than `fetch.timeout_s`, or not there when its unit ran out of time, an hour.",
        explain="it did not arrive in time, {setting}, retries = {config.fetch.retries}",
        card="the server took longer (seconds)",
        threshold="fetch.timeout_s",
    )
    HTTP_NOT_ASKED = Words(
        "http_not_asked",
        "Never asked for: its host was given up or wanted to be left alone, or its unit ran out of time.",
        explain="never asked for: its host was given up, or wanted to be left alone; altalign retry asks for it",
        card="a host that was given up before its turn",
    )
    HTTP_UNREACHABLE = Words(
        "http_unreachable",
        "DNS, connection or TLS failed.",
        explain="DNS, connection or TLS failed, [fetch] retries = {config.fetch.retries}",
        card="no server was reached",
    )
    HTTP_BROKEN = Words(
        "http_broken",
        "The answer is reset, cut short, empty or badly encoded, or breaks the protocol.",
        explain="the answer was reset, cut, empty or misencoded, [fetch] retries = {config.fetch.retries}",
        card="the server's answer was broken",
    )
    HTTP_TOO_LARGE = Words(
        "http_too_large",
        "More bytes than `fetch.bytes_at_most`.",
        explain="{setting}",
        card="more bytes",
        threshold="fetch.bytes_at_most",
    )
    OPT_OUT_X_ROBOTS_TAG = _opt_out("x_robots_tag", "`X-Robots-Tag` of the image or its page")
    OPT_OUT_META_ROBOTS = _opt_out("meta_robots", "a robots meta element of its page")
    OPT_OUT_CONTENT_USAGE = _opt_out("content_usage", "`Content-Usage` of the image, its page or robots.txt")
    OPT_OUT_CONTENT_SIGNAL = _opt_out("content_signal", "`Content-Signal` of the image, its page or robots.txt")
    OPT_OUT_TDMREP = _opt_out("tdmrep", "the TDM Reservation Protocol (header, meta element or tdmrep.json)")
    OPT_OUT_RSL = _opt_out("rsl", "a licence of Really Simple Licensing (header or robots.txt)")
    OPT_OUT_IPTC = _opt_out("iptc", "`plus:DataMining` in the image")
    OPT_OUT_C2PA = _opt_out("c2pa", "an assertion of C2PA in the image")
    OPT_OUT_ROBOTS_TXT = Words(
        "opt_out_robots_txt",
        "robots.txt forbids this robot to fetch it: on the web (`fetch.honour_robots`), or as archived "
        "(`fetch.purpose`).",
        explain="robots.txt forbids it, [fetch] honour_robots, purpose",
        card="robots.txt forbids it",
    )
    HTTP_REFUSED = Words(
        "http_refused",
        "Its address (`fetch.allow_addresses`), port (`fetch.ports`) or scheme is not allowed, or its domain is "
        "blocked (`fetch.blocked_domains`).",
        explain="refused by [fetch] ports, allow_addresses or blocked_domains",
        card="an address that may not be asked",
    )
    URL_BLOCKED = Words(
        "url_blocked",
        "A file of `fetch.blocked_urls` lists the hash of its URL, or of one that it redirects to; it is not asked "
        "for.",
        explain="the hash of its URL is in a file of [fetch] blocked_urls",
        card="its URL is on a block list",
        why="For legal and ethical block lists.",
    )
    NEAR_DUPLICATE_OF_TEST_IMAGE = Words(
        "near_duplicate_of_test_image",
        "Closer to a test image than `decontaminate.similarity_above`.",
        explain="cosine {row[similarity]:.4f} with {row[test_image]} of test set {row[test_set]}, {cosine_above}",
        card="near to an image of a test set, by a cosine above",
        threshold="decontaminate.similarity_above",
        on_with="decontaminate.test_sets",
    )
    NEAR_DUPLICATE_IN_POOL = Words(
        "near_duplicate_in_pool",
        "Close to another image of the pool (`dedup.within_pool`).",
        explain="{cosine} the image of key {row[kept_key]}, which {kept_row}, {cosine_above}",
        card="near to another image of the pool, which stays",
        why="Keeps one image of each group of near-duplicates.",
    )
    NOT_LISTED = Words(
        "not_listed",
        "A run was made of the pairs in a list, and this one is not in it.",
        explain="the list of pairs that the run was made of does not have it",
        card="not in the list of pairs that the data was made of",
    )
    OUT_OF_BALANCE = Words(
        "out_of_balance",
        "Its concepts are frequent, and `altalign select` with `--balance` did not draw its lot; or it has none.",
        explain="its concepts are frequent, and its lot was not drawn; or it has none",
        card="its concepts are frequent, and its lot was not drawn; or it has none",
    )
    REMOVED = Words(
        "removed",
        "`altalign remove` has taken it out of the run, which keeps its hash alone. In `fetch`: `altalign add` has not "
        "asked for its image again.",
        explain="on request; removed.parquet has when",
        card="taken out on request",
    )


RULES: Mapping[Stage, tuple[Rule, ...]] = {Stage.JUDGE: text.RULES, Stage.IMAGE: image.RULES}
SECTIONS = {Stage.JUDGE: "text", Stage.IMAGE: "image"}  # whose `filters` name further rules, those of a run's own

# What rights holders say against the purpose, a reason a notation.
OPT_OUTS = tuple(reason for reason in DropReason if reason.startswith("opt_out_"))

_OF_STAGES: Mapping[Stage, tuple[str, ...]] = {
    Stage.EXTRACT: (
        DropReason.RECORD_BROKEN,
        DropReason.ALT_MISSING,
        DropReason.ALT_EMPTY,
        text.url_too_long.name,
        text.url_invalid.name,
    ),
    Stage.JUDGE: (*(rule.name for rule in text.RULES), DropReason.PAIR_REPEATED),
    Stage.FETCH: (
        DropReason.NOT_IN_ARCHIVE,
        DropReason.ROW_TOO_LARGE,
        DropReason.HTTP_STATUS,
        DropReason.HTTP_TIMEOUT,
        DropReason.HTTP_NOT_ASKED,
        DropReason.HTTP_UNREACHABLE,
        DropReason.HTTP_BROKEN,
        DropReason.HTTP_TOO_LARGE,
        *OPT_OUTS,
        DropReason.HTTP_REFUSED,
        DropReason.URL_BLOCKED,
        DropReason.REMOVED,
    ),
    Stage.IMAGE: tuple(rule.name for rule in image.RULES),
    Stage.DECONTAMINATE: (DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE, DropReason.NEAR_DUPLICATE_IN_POOL),
    Stage.SELECT: (
        DropReason.NOT_LISTED,
        DropReason.OUT_OF_BALANCE,
        DropReason.REMOVED,
        text.text_on_too_many_images.name,
        text.image_has_too_many_texts.name,
        DropReason.PAIR_REPEATED,
        *OPT_OUTS,
    ),
}

REASONS: Mapping[Stage, tuple[str, ...]] = {stage: tuple(map(str, names)) for stage, names in _OF_STAGES.items()}
_DECLARED = (*DropReason, *text.RULES, *image.RULES)

# The words of every reason, in the order of `REASONS`.
WORDS: Mapping[str, Words] = {
    name: next(each.words for each in _DECLARED if each.words.reason == name)
    for names in REASONS.values()
    for name in names
}

# What the paper says of each reason that is of it.
PAPERS: Mapping[str, Paper] = {
    **{rule.name: rule.paper for rules in RULES.values() for rule in rules if rule.paper},
    DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE.value: Paper(
        "we also remove duplicates or near-duplicates of test images in all downstream evaluation datasets",
        "Cosine, above",
        "0.975",
        number=0.975,
        shown="{}",
        note="The paper's threshold is for its own embedder.",
        where="ALIGN, section 3 and appendix A",
    ),
}

# Failures that a later try may mend. Final answers are not asked for again: a status other than 429 and 5xx, an opt-out
# and a refusal.
PASSING = (DropReason.HTTP_NOT_ASKED, DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE, DropReason.HTTP_BROKEN)


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

    ValueError where the stage has no such reason.
    """
    is_own = reason.startswith(OWN) and stage in (Stage.JUDGE, Stage.IMAGE)
    if is_own or (stage is Stage.SELECT and reason.startswith(OF_SELECT)):
        return len(REASONS[stage]), reason
    return REASONS[stage].index(reason), ""


def drop_where(mask: pa.BooleanArray, reason: str) -> Verdict:
    """Verdict of one rule: `reason` where `mask`, which has no nulls, holds, null elsewhere."""
    # All indices are 0; the bits of the mask serve as the validity bitmap.
    buffers = [mask.buffers()[1], pa.py_buffer(bytes(mask.offset + len(mask)))]
    indices = pa.Array.from_buffers(pa.int8(), len(mask), buffers, offset=mask.offset)
    return pa.DictionaryArray.from_arrays(indices, pa.array([str(reason)], pa.string()))


def ask(rules: Iterable[Rule], columns: Columns, config: Any, name_row: Callable[[int], str] = str) -> list[Verdict]:
    """The verdict of each rule on n rows; see `Rule.mask`."""
    return [drop_where(rule.mask(columns, config, name_row), rule.name) for rule in rules]


def reasons_of(verdicts: Sequence[Verdict]) -> tuple[Verdict, "pa.DictionaryArray[Any, Any]"]:
    """The final verdict of n rows, and every reason that holds for each.

    Of `verdicts` there are at least one and at most 63, each of one rule (its dictionary has one reason), in the order
    of `REASONS`, rules of a run's own last. Returns the first that is not null (dictionary<string>[n]), and all reasons
    that hold (dictionary<list<string>>[n], with one entry for each combination that occurs).
    """
    kind = pa.uint8() if len(verdicts) <= 8 else pa.uint16() if len(verdicts) <= 16 else pa.uint64()
    held: Any = pa.repeat(cast(Any, pa.scalar(0, kind)), len(verdicts[0]))
    reasons = [reason for verdict in verdicts for reason in cast(Any, verdict.dictionary).to_pylist()]
    for bit, verdict in enumerate(verdicts):
        if verdict.null_count < len(verdict):  # in most batches, most rules hold for no row
            held = pc.bit_wise_or(held, pc.if_else(verdict.is_valid(), pa.scalar(1 << bit, kind), pa.scalar(0, kind)))
    which = held.dictionary_encode()
    combinations = [[bit for bit in range(len(reasons)) if bits >> bit & 1] for bits in which.dictionary.to_pylist()]
    first = pa.array([next(iter(combination), None) for combination in combinations], pa.int8())
    every = pa.array([[reasons[bit] for bit in combination] for combination in combinations], pa.list_(pa.string()))
    of_reasons = pa.DictionaryArray.from_arrays(first.take(which.indices), pa.array(reasons, pa.string()))
    return of_reasons, pa.DictionaryArray.from_arrays(which.indices, every)
