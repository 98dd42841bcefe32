"""Compares the run's rules with ALIGN's (arXiv 2102.05918v2, section 3, appendix A), and lists our own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from altalign.audit.report import files
from altalign.audit.report.funnel_and_reasons import Rows
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import REASONS, DropReason, Stage
from altalign.rules.reason_words import about, of_own
from altalign.settings.curate import CurateConfig

Mark = Literal["same", "stricter", "looser", "other", "off"]


@dataclass(frozen=True)
class OfPaper:
    """A rule of the paper: what it says, what the run did, and how the two compare; `note` explains the difference."""

    rule: str
    paper: str
    run: str
    mark: Mark
    note: str = ""


@dataclass(frozen=True)
class Ours:
    """A rule or choice that is not in the paper, and the rows that it dropped (None: it drops none by itself)."""

    rule: str
    why: str
    rows: int | None


@dataclass(frozen=True)
class Fidelity:
    """The rules of the paper, our own, and warnings to read before calling the data ALIGN's."""

    rules: list[OfPaper]
    ours: list[Ours]
    warnings: list[str]


def of_run(run: RunFolder, counts: Rows) -> Fidelity:
    """Compares the rules of a run with the paper's."""
    config = run.config
    vocabulary, near = files.facts(run, "tables/vocabulary.json"), files.facts(run, "audit/near_duplicates/found.json")
    rules = [*_texts(config, vocabulary), *_images(config), *_near_duplicates(config, near)]
    warnings = [*_of_waves(files.facts(run, "tables/frozen.json")), *_warnings(config, vocabulary, near)]
    return Fidelity(rules, _ours(config, counts), warnings)


def _against(value: float, paper: float, *, less_is_stricter: bool) -> Mark:
    if value == paper:
        return "same"
    return "stricter" if (value < paper) == less_is_stricter else "looser"


def _texts(config: CurateConfig, vocabulary: dict[str, object]) -> Iterator[OfPaper]:
    text = config.text
    note = "The paper does not say how it recognized English."
    yield OfPaper("Language", "English (section 3); any (section 8)", "any", "other", note)
    least, most, shared = text.words_at_least, text.words_at_most, text.images_per_text_at_most
    note = "The paper names no tokenizer. Here a word is a run of letters and digits."
    yield OfPaper("Words, at least", "3", f"{least:,}", _against(least, 3, less_is_stricter=False), note)
    yield OfPaper("Words, at most", "20", f"{most:,}", _against(most, 20, less_is_stricter=True))
    mark = _against(shared, 10, less_is_stricter=True)
    yield OfPaper("Images of a text, at most", "10", f"{shared:,}", mark)
    captioned = config.image.texts_per_image_at_most
    mark = _against(captioned, 1_000, less_is_stricter=True)
    yield OfPaper("Texts of an image, at most", "1,000", f"{captioned:,}", mark)
    said, size = "100,000,000 most frequent unigrams and bigrams", text.vocabulary_size
    if vocabulary.get("all"):
        note = f"The pool has only {vocabulary.get('distinct', 0):,} n-grams, so none is rare."
        yield OfPaper("Vocabulary", said, f"{size:,}", "off", note)
    else:
        note = "" if size == 100_000_000 else "On a pool smaller than the web, the same rank is a different rule."
        yield OfPaper("Vocabulary", said, f"{size:,}", _against(size, 100_000_000, less_is_stricter=True), note)


def _images(config: CurateConfig) -> Iterator[OfPaper]:
    image = config.image
    side, below = image.short_side_above_px, image.aspect_ratio_below
    mark, note = _against(side, 200, less_is_stricter=False), "Exactly 200 px is dropped, as in the paper."
    yield OfPaper("Short side, above", "200 px", f"{side:,} px", mark, note)
    mark, note = _against(below, 3, less_is_stricter=True), "Exactly 3 is dropped, as in the paper."
    yield OfPaper("Aspect ratio, below", "3", f"{below:g}", mark, note)
    rule, paper = "Pornographic images", "removed"
    if image.nsfw.model:
        said = f"dropped at a score of {image.nsfw.drop_at_or_above:g} or more"
        yield OfPaper(rule, paper, said, "other", "The paper names neither classifier nor threshold.")
    else:
        yield OfPaper(rule, paper, "not checked", "off", "No classifier was set ([image.nsfw] model).")


def _near_duplicates(config: CurateConfig, near: dict[str, object]) -> Iterator[OfPaper]:
    settings = config.decontaminate
    rule, paper = "Test images", "near-duplicates in all downstream test sets removed"
    if not settings.test_sets:
        yield OfPaper(rule, paper, "not searched", "off", "No test set was named ([decontaminate] test_sets).")
        return
    names = ", ".join(test_set.name for test_set in settings.named_sets)
    note = "Only these sets were searched. Name every set that you report results on."
    yield OfPaper(rule, paper, names, "other", note)
    note = "Crops and rotated copies may stay: `altalign calibrate` measures which."
    yield OfPaper("Embedder", "a deep ranking model, not published", settings.embedder, "other", note)
    above = near.get("similarity_above", settings.similarity_above)
    is_calibrated = f", from {settings.calibration}" if settings.calibration else ""
    mark = _against(float(str(above)), 0.975, less_is_stricter=True)
    note = "The paper's threshold is for its own embedder."
    yield OfPaper("Cosine, above", "0.975", f"{above}{is_calibrated}", mark, note)
    clusters = int(str(near.get("clusters", settings.clusters)))
    note = (
        f"{clusters:,} instead of {settings.clusters:,}: each needs 64 images." if clusters < settings.clusters else ""
    )
    paper, mark = "4,096, of the embedder's training images", "same" if clusters == 4_096 else "other"
    yield OfPaper("Clusters", paper, f"{clusters:,}, of the run's own images", mark, note)
    shared, nearest = settings.bucket_clusters, settings.nearest_clusters
    buckets = f"{shared} of {nearest} clusters" if settings.require_bucket else "cosine alone"
    is_same = settings.require_bucket and (shared, nearest) == (3, 10)
    yield OfPaper("Buckets", "3 of 10 clusters", buckets, "same" if is_same else "other")


OF_PAPER = frozenset(
    (
        DropReason.TEXT_TOO_SHORT,
        DropReason.TEXT_TOO_LONG,
        DropReason.TEXT_ON_TOO_MANY_IMAGES,
        DropReason.TEXT_HAS_RARE_NGRAM,
        DropReason.IMAGE_HAS_TOO_MANY_TEXTS,
        DropReason.IMAGE_TOO_SMALL,
        DropReason.IMAGE_TOO_ELONGATED,
        DropReason.IMAGE_NSFW,
        DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE,
    )
)
_WHY = {
    DropReason.RECORD_BROKEN: "Records that cannot be read are counted, too.",
    DropReason.ALT_MISSING: "No caption, no pair.",
    DropReason.ALT_EMPTY: "No caption, no pair.",
    DropReason.TEXT_EMPTY: "No caption, no pair.",
    DropReason.URL_TOO_LONG: "No server takes such a URL; bounds memory.",
    DropReason.TEXT_TOO_LARGE: "Bounds memory; 20 words never have so many bytes.",
    DropReason.ROW_TOO_LARGE: "Bounds memory.",
    DropReason.URL_INVALID: "With neither a valid URL nor the image, there is nothing to fetch.",
    DropReason.PAIR_REPEATED: "A repeated pair only adds weight.",
    DropReason.IMAGE_UNDECODABLE: "An image that cannot be decoded is of no use for training.",
    DropReason.IMAGE_DAMAGED: "A damaged image is of no use for training.",
    DropReason.IMAGE_TOO_MANY_PIXELS: "Protects against decompression bombs.",
    DropReason.URL_BLOCKED: "For legal and ethical block lists.",
    DropReason.IMAGE_BLOCKED: "For legal and ethical block lists.",
    DropReason.NEAR_DUPLICATE_IN_POOL: "Keeps one image of each group of near-duplicates.",
}


def _ours(config: CurateConfig, counts: Rows) -> list[Ours]:
    rows = {(stage, reason.value): 0 for stage in Stage for reason in REASONS[stage]}
    for (stage, _, reason), count in counts.items():
        rows[Stage(stage), reason] = rows.get((Stage(stage), reason), 0) + count
    unfetched = [reason for reason in REASONS[Stage.FETCH] if reason is not DropReason.URL_BLOCKED]
    ours = [reason for reason in DropReason if reason not in OF_PAPER and reason not in unfetched]
    why = about() | _WHY
    of_reason: Counter[str] = Counter()
    for (_, name), count in rows.items():
        of_reason[name] += count
    told = [Ours(reason.value, why[reason], of_reason[reason]) for reason in ours]
    for stage in Stage:
        for reason, said in of_own(stage, config).items():
            told.append(Ours(reason, f"A rule of this run's own: {said}.", of_reason[reason]))
    rows_unfetched = sum(rows[Stage.FETCH, reason.value] for reason in unfetched)
    about_them = "Images that could not be fetched; the paper does not say how many it lost."
    told.append(Ours("not_in_archive, http_*", about_them, rows_unfetched))
    if config.shards.portable or config.shards.resize_short_side_px:
        how = " and made smaller" if config.shards.resize_short_side_px else ""
        told.append(Ours("stored images", f"Every image is stored as JPEG{how}.", None))
    return told


def _of_waves(frozen: dict[str, Any]) -> Iterator[str]:
    """What `altalign add --mode frozen` says of how far the tables have drifted."""
    if not frozen:
        return
    drift = frozen["drift"]
    rows, anew = drift["rows"], drift["rows"]["would_come"] + drift["rows"]["would_go"]
    yield (
        f"The tables are of the first {frozen['first_files'][0]:,} input files: what came later was judged by counts "
        f"that it is not in. With the counts of all, {anew:,} of the last {rows['are']:,} rows would have been judged "
        "otherwise."
    )
    if ngrams := drift["ngrams"]:
        moved = f"{ngrams['would_come']:,} n-grams would come into the vocabulary and {ngrams['would_go']:,} would go"
        yield f"With the counts of all, {moved}, of {ngrams['are']:,}."


def _warnings(config: CurateConfig, vocabulary: dict[str, object], near: dict[str, object]) -> Iterator[str]:
    """Warnings in words."""
    if not config.image.nsfw.model:
        yield (
            "Pornographic images were not removed, because no classifier was set. "
            "The paper removed them; this data may contain some."
        )
    if not config.decontaminate.test_sets:
        yield (
            "Test images were not removed, because no test set was named. "
            "A model trained on this data may have seen the images of any test set."
        )
    elif config.decontaminate.embedder in ("dct", "phash"):
        named = config.decontaminate.embedder
        yield f"The embedder {named} does not find crops or rotated copies, so such copies of test images may remain."
    if near.get("flat_test_images"):
        yield f"{near['flat_test_images']:,} test images are flat (one colour): only exact copies of them were found."
    if vocabulary.get("all"):
        yield "The rare n-gram rule dropped nothing: the pool has fewer n-grams than the vocabulary holds."
    honoured = {"Opt-out headers": config.fetch.honour_opt_out, "robots.txt": config.fetch.honour_robots}
    off = [name for name, is_on in honoured.items() if not is_on]
    if config.fetch.source == "web" and off:
        yield f"{' and '.join(off)} were not honoured while images were fetched."
