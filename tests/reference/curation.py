"""The whole curation as plain loops over rows: the oracle that tables, verdicts, counts and order are held against.

Written from the contract alone (product.md, sections 3, 4 and 6), with nothing of filters, dedup or pipelines, and
without Arrow or NumPy, so that one mistake is not made twice. Slow and obvious on purpose.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import ada_url

from altalign.data.key import image_id, sample_key
from altalign.data.reasons import KEPT, REASONS, DropReason, Stage
from tests.reference.captions import WHITE_SPACE, bigrams, clean, decode_entities, folded, words

PAGES = ("warc", "wat")
CAPTION_BYTES, URL_BYTES, EXTRA_BYTES = 65_536, 8_192, 65_536

# The rules that each measure of the audit is of.
RULES_OF_MEASURE = {
    "words": {"text_too_short", "text_too_long"},
    "rarest_log2": {"text_has_rare_ngram"},
    "images_per_text": {"text_on_too_many_images"},
    "texts_per_image": {"image_has_too_many_texts"},
    "short_side_px": {"image_too_small"},
    "aspect_percent": {"image_too_elongated"},
    "nsfw_percent": {"image_nsfw"},
}


def cut(text: str | None, bytes_at_most: int) -> str | None:
    """A longer text as it is kept: characters up to the first that is above the limit and is no space."""
    size = 0
    for number, character in enumerate(text or ""):
        size += len(character.encode())
        if size > bytes_at_most and character != " ":
            return (text or "")[: number + 1]
    return text


def is_long(text: str | None, bytes_at_most: int) -> bool:
    """Whether a text has more bytes."""
    return len((text or "").encode()) > bytes_at_most


@dataclass(frozen=True)
class Candidate:
    """A candidate as its reader finds it: a row of a table, or an image element of a page with its URL resolved.

    `position` is the input position over the whole run. `image_sha256` (lower-case hex) says that the image is in hand.
    `decode_entities` says that the caption still holds character references.
    """

    image_url: str | None
    caption_raw: str | None
    page_url: str | None = None
    source: str = "table"
    position: int = 0
    image_sha256: str | None = None
    kind: str = "table"
    decode_entities: bool = False
    broken: bool = False
    source_key: str | None = None
    extra: str | None = None

    @cached_property
    def caption(self) -> str:
        """The cleaned caption; a null one counts as the empty one."""
        raw = self.caption_raw or ""
        return cut(clean(decode_entities(raw) if self.decode_entities else raw), CAPTION_BYTES) or ""

    @cached_property
    def words(self) -> list[str]:
        """The words of the caption, in order."""
        return words(self.caption)

    @property
    def ngrams(self) -> list[str]:
        """Unigrams and bigrams of the caption, each as often as it occurs."""
        return self.words + bigrams(self.words)

    @cached_property
    def identity(self) -> str | None:
        """The image identity, or None: an invalid URL and no image in hand."""
        url = url_without_fragment(self.image_url)
        return self.image_sha256 if url is None or is_long(url, URL_BYTES) else url


def url_without_fragment(url: str | None) -> str | None:
    """The URL as written, without white space at its ends and without fragment; None where it is no http(s) URL of
    WHATWG.
    """
    trimmed = (url or "").strip(WHITE_SPACE)
    try:
        scheme = ada_url.URL(trimmed).protocol
    except ValueError:
        return None
    return trimmed.split("#")[0] if scheme in ("http:", "https:") else None


@dataclass(frozen=True)
class Settings:
    """The settings that decide a verdict, with the defaults of section 2.

    `nsfw_at_or_above` None: no model, rule off.
    """

    words_at_least: int = 3
    words_at_most: int = 20
    bytes_at_most: int = 65_536
    images_per_text_at_most: int = 10
    vocabulary_size: int = 100_000_000
    short_side_above_px: int = 200
    aspect_ratio_below: float = 3.0
    texts_per_image_at_most: int = 1000
    pixels_at_most: int = 178_956_970
    blocked_hashes: frozenset[str] = frozenset()
    nsfw_at_or_above: float | None = None

    @classmethod
    def of(cls, config: Any, blocked_hashes: Iterable[str] = ()) -> Self:
        """The settings of a CurateConfig, which this file does not import."""
        named = {**dict(config.text), **dict(config.image)}
        nsfw = named.pop("nsfw")
        named |= {
            "blocked_hashes": frozenset(blocked_hashes),
            "nsfw_at_or_above": nsfw.drop_at_or_above if nsfw.model else None,
        }
        return cls(**{each.name: named[each.name] for each in fields(cls)})


# Tables


@dataclass(frozen=True)
class Tables:
    """What the pool as a whole says: exact counts, by the strings themselves.

    `ngrams`, `images_per_text` (by folded caption) and `texts_per_image` (by identity) count everything; `vocabulary`
    is None where there is no table (with `threshold` None), and the other two hold what is above its limit.
    `words_per_row` has how many rows have so many words.
    """

    ngrams: Counter[str]
    vocabulary: dict[str, int] | None
    threshold: int | None
    images_per_text: dict[str, int]
    over_shared_texts: dict[str, int]
    texts_per_image: dict[str, int]
    over_captioned_images: dict[str, int]
    words_per_row: Counter[int]

    @property
    def ngram_counts(self) -> Counter[int]:
        """How many distinct n-grams occur so many times."""
        return Counter(self.ngrams.values())

    @property
    def images_per_text_counts(self) -> Counter[int]:
        """How many folded captions are on so many images; those on none (no row with an identity) are left out."""
        return Counter(self.images_per_text.values())

    @property
    def texts_per_image_counts(self) -> Counter[int]:
        """How many images have so many folded captions."""
        return Counter(self.texts_per_image.values())


def tables(candidates: Iterable[Candidate], settings: Settings) -> Tables:
    """The three tables and the histograms of a pool."""
    counts: Counter[str] = Counter()
    rows: Counter[int] = Counter()
    images: defaultdict[str, set[str]] = defaultdict(set)
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for candidate in candidates:
        caption, identity = candidate.caption, candidate.identity
        counts.update(candidate.ngrams)
        rows[len(candidate.words)] += 1
        if identity is not None:
            images[folded(caption)].add(identity)
            texts[identity].add(folded(caption))
    threshold = _threshold(counts, settings.vocabulary_size)
    images_per_text = {text: len(found) for text, found in images.items()}
    texts_per_image = {image: len(found) for image, found in texts.items()}
    return Tables(
        ngrams=counts,
        vocabulary=None
        if threshold is None
        else {ngram: count for ngram, count in counts.items() if count >= threshold},
        threshold=threshold,
        images_per_text=images_per_text,
        over_shared_texts={
            text: count for text, count in images_per_text.items() if count > settings.images_per_text_at_most
        },
        texts_per_image=texts_per_image,
        over_captioned_images={
            image: count for image, count in texts_per_image.items() if count > settings.texts_per_image_at_most
        },
        words_per_row=rows,
    )


def _threshold(counts: Mapping[str, int], size: int) -> int | None:
    """The size-th largest count; None where the rule drops nothing."""
    if len(counts) < size:
        return None
    threshold = sorted(counts.values(), reverse=True)[size - 1]
    return None if threshold == 1 else threshold


# Verdicts


@dataclass
class Outcome:
    """What became of a candidate in one stage.

    `reason` None: kept. `images_per_text` and `texts_per_image` only where above the limit.
    """

    candidate: Candidate
    stage: Stage
    caption: str = field(init=False)
    image_url: str | None = field(init=False)
    identity: str | None = field(init=False)
    image_id: str | None = field(init=False)
    key: str = field(init=False)
    words: int = field(init=False)
    failed: list[str] = field(default_factory=list)
    kept_key: str | None = None
    images_per_text: int | None = None
    texts_per_image: int | None = None

    def __post_init__(self) -> None:
        self.caption = self.candidate.caption
        self.identity = self.candidate.identity
        written = self.candidate.image_url
        taken = url_without_fragment(written) or (None if written is None else written.strip(WHITE_SPACE))
        self.image_url = cut(taken, URL_BYTES)
        self.image_id = None if self.identity is None else image_id(self.identity)
        self.key = sample_key(self.identity or "", self.caption)
        self.words = len(self.candidate.words)

    @property
    def has_long_url(self) -> bool:
        """Whether the URL of the image, or of its page, is too long."""
        return is_long(self.image_url, URL_BYTES) or is_long(self.candidate.page_url, URL_BYTES)

    @property
    def reason(self) -> str | None:
        """The first of `failed`, which is in the order of the rules."""
        return self.failed[0] if self.failed else None


def extract(candidates: Iterable[Candidate]) -> list[Outcome]:
    """Outcomes of stage extract, row by row. A page's URL is the resolved one, or None where it could not be."""
    outcomes = [Outcome(candidate, Stage.EXTRACT) for candidate in candidates]
    for outcome in outcomes:
        candidate = outcome.candidate
        page = candidate.kind in PAGES
        if candidate.broken:
            outcome.failed.append(DropReason.RECORD_BROKEN)
            continue
        if page and candidate.caption_raw is None:
            outcome.failed.append(DropReason.ALT_MISSING)
        if page and candidate.caption_raw is not None and outcome.caption == "":
            outcome.failed.append(DropReason.ALT_EMPTY)
        if page and outcome.has_long_url:
            outcome.failed.append("url_too_long")
        if page and outcome.identity is None:
            outcome.failed.append("url_invalid")
    return outcomes


def judge(candidates: Sequence[Candidate], settings: Settings, counted: int | None = None) -> list[Outcome]:
    """Outcomes of stage judge, in the order given; they depend on the candidates' positions, not on that order.

    `counted` is the first position of the rows that are in no table; None: all are.
    """
    facts = tables([c for c in candidates if counted is None or c.position < counted], settings)
    outcomes = [Outcome(candidate, Stage.JUDGE) for candidate in candidates]
    for outcome in outcomes:
        outcome.images_per_text = facts.over_shared_texts.get(folded(outcome.caption))
        outcome.texts_per_image = (
            None if outcome.identity is None else facts.over_captioned_images.get(outcome.identity)
        )
        holds = {
            "url_too_long": outcome.has_long_url,
            "url_invalid": outcome.identity is None,
            "text_empty": outcome.caption == "",
            "text_too_large": is_long(outcome.caption, settings.bytes_at_most),
            "text_too_short": outcome.words < settings.words_at_least,
            "text_too_long": outcome.words > settings.words_at_most,
            "text_on_too_many_images": outcome.images_per_text is not None,
            "text_has_rare_ngram": facts.vocabulary is not None
            and any(ngram not in facts.vocabulary for ngram in outcome.candidate.ngrams),
            "image_has_too_many_texts": outcome.texts_per_image is not None,
            DropReason.ROW_TOO_LARGE: is_long(outcome.candidate.extra, EXTRA_BYTES),
        }
        outcome.failed = [reason for reason in REASONS[Stage.JUDGE] if holds.get(reason)]
    _drop_repeated(outcomes)
    return outcomes


def _drop_repeated(outcomes: Iterable[Outcome]) -> None:
    groups: defaultdict[tuple[str | None, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome.failed:
            groups[outcome.identity, outcome.caption].append(outcome)
    for group in groups.values():
        group.sort(
            key=lambda o: (
                o.candidate.page_url is not None,
                o.candidate.page_url or "",
                o.candidate.position,
            )
        )
        for repeated in group[1:]:
            repeated.failed = [DropReason.PAIR_REPEATED]
            repeated.kept_key = group[0].key


@dataclass(frozen=True)
class ImageFacts:
    """What is known of an image's bytes.

    `format` None: no known one. Size None: unknown. `damaged` is known only of what was decoded.

    `hashes` are those that could be computed: SHA-256 and MD5 of any bytes, PDQ of a decoded image.
    """

    format: str | None = "jpg"
    width: int | None = None
    height: int | None = None
    damaged: bool = False
    hashes: frozenset[str] = frozenset()
    nsfw_score: float | None = None


def image_verdict(facts: ImageFacts, settings: Settings) -> list[str]:
    """Every rule of stage image that holds and could be decided, in their order; empty keeps."""
    holds = {
        "image_undecodable": facts.format is None,
        "image_blocked": bool(facts.hashes & settings.blocked_hashes),
    }
    if facts.format is not None and facts.width is not None and facts.height is not None:
        short, long = sorted((facts.width, facts.height))
        holds["image_too_many_pixels"] = short * long > settings.pixels_at_most
        holds["image_too_small"] = short <= settings.short_side_above_px
        holds["image_too_elongated"] = long >= Fraction(str(settings.aspect_ratio_below)) * short
    if facts.format is not None and not holds.get("image_too_many_pixels"):  # such a one is never decoded
        holds["image_damaged"] = facts.damaged
        if settings.nsfw_at_or_above is not None and facts.nsfw_score is not None and not facts.damaged:
            holds["image_nsfw"] = facts.nsfw_score >= settings.nsfw_at_or_above
    return [reason for reason in REASONS[Stage.IMAGE] if holds.get(reason)]


# The whole curation

StageCounts = Counter[tuple[str, str, str]]


@dataclass
class Curation:
    """A finished run: `counts` by (stage, source, reason), dropped rows of all stages, kept rows in order of (image_id,
    key).
    """

    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: StageCounts = field(default_factory=Counter)
    dropped: list[Outcome] = field(default_factory=list)
    kept: list[Outcome] = field(default_factory=list)

    def pass_on(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Count a stage's rows, set the dropped ones aside, and give what it keeps."""
        for outcome in outcomes:
            self.received[outcome.stage.value, outcome.candidate.source] += 1
            self.counts[outcome.stage.value, outcome.candidate.source, outcome.reason or KEPT] += 1
        self.dropped += [outcome for outcome in outcomes if outcome.failed]
        return [outcome for outcome in outcomes if not outcome.failed]


def run(
    candidates: Sequence[Candidate],
    images: Mapping[str, ImageFacts | DropReason],
    settings: Settings,
    counted: int | None = None,
) -> Curation:
    """Extract, judge, fetch, image and decontaminate, one after the other.

    `images` has the facts of each identity; an identity that is missing is not in the archive; a reason in place of
    facts is why fetching it failed.
    """
    curation = Curation()
    pool = [outcome.candidate for outcome in curation.pass_on(extract(candidates))]
    survivors = curation.pass_on(judge(pool, settings, counted))
    fetched = [Outcome(outcome.candidate, Stage.FETCH) for outcome in survivors]
    for outcome in fetched:
        found = images.get(outcome.identity or "", DropReason.NOT_IN_ARCHIVE)
        outcome.failed = [found] if isinstance(found, DropReason) else []
    seen = [Outcome(outcome.candidate, Stage.IMAGE) for outcome in curation.pass_on(fetched)]
    for outcome in seen:
        found = images[outcome.identity or ""]
        outcome.failed = [] if isinstance(found, DropReason) else image_verdict(found, settings)
    # for nothing: no test set is named
    searched = [Outcome(outcome.candidate, Stage.DECONTAMINATE) for outcome in curation.pass_on(seen)]
    curation.kept = sorted(curation.pass_on(searched), key=lambda outcome: (outcome.image_id or "", outcome.key))
    return curation


def images_in_hand(candidates: Iterable[Candidate]) -> dict[str, str]:
    """SHA-256 of the image of each identity: of several rows with bytes the first in input order."""
    found: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda c: c.position):
        if candidate.identity is not None and candidate.image_sha256 is not None:
            found.setdefault(candidate.identity, candidate.image_sha256)
    return found


def reconcile(
    counts: Mapping[tuple[str, str, str], int], received: Mapping[tuple[str, str], int] | None = None
) -> list[str]:
    """Every place where counts by (stage, source, reason) do not add up, as a line each; `received` is by (stage,
    source).

    A stage that counts nothing at all did not take place, and is passed over.
    """
    found: Counter[tuple[str, str]] = Counter()
    for (stage, source, _), rows in counts.items():
        found[stage, source] += rows
    problems = (
        []
        if received is None
        else [f"{place}: received {n}, counted {found[place]}" for place, n in received.items() if n != found[place]]
    )
    stages = [stage.value for stage in Stage if any(stage.value == counted for counted, _ in found)]
    for before, after in pairwise(stages):
        for source in sorted({source for _, source in found}):
            kept = counts.get((before, source, KEPT), 0)
            if kept != found[after, source]:
                problems.append(f"{source}: {before} kept {kept}, {after} received {found[after, source]}")
    return problems
