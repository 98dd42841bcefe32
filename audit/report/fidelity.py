"""The run's rules beside ALIGN's (arXiv 2102.05918v2, section 3 and appendix A): the same, other, off, or not of the paper at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from altalign.audit.report import files
from altalign.audit.report.dropping import Rows, about
from altalign.audit.run_folder import RunFolder
from altalign.curation import CurateConfig
from altalign.reasons import REASONS, DropReason, Stage

Mark = Literal["same", "stricter", "looser", "other", "off"]


@dataclass(frozen=True)
class OfPaper:
    """A rule of the paper, what it says, what the run did, and how the two compare; `note` says why where that is not plain."""

    rule: str
    paper: str
    run: str
    mark: Mark
    note: str = ""


@dataclass(frozen=True)
class Ours:
    """A rule or choice that the paper has not, and the rows that it dropped (None: it drops none by itself)."""

    rule: str
    why: str
    rows: int | None


@dataclass(frozen=True)
class Fidelity:
    """The rules of the paper, ours, and what in words has to be said before the data are called ALIGN's."""

    rules: list[OfPaper]
    ours: list[Ours]
    warnings: list[str]


def of_run(run: RunFolder, counts: Rows) -> Fidelity:
    """The run's rules beside the paper's."""
    config = run.config
    vocabulary, near = files.facts(run, "tables/vocabulary.json"), files.facts(run, "audit/near_duplicates/found.json")
    rules = [*_texts(config, vocabulary), *_images(config), *_near_duplicates(config, near)]
    return Fidelity(rules, _ours(config, counts), list(_warnings(config, vocabulary, near)))


def _against(value: float, paper: float, *, less_is_stricter: bool) -> Mark:
    if value == paper:
        return "same"
    return "stricter" if (value < paper) == less_is_stricter else "looser"


def _texts(config: CurateConfig, vocabulary: dict[str, object]) -> Iterator[OfPaper]:
    text = config.text
    yield OfPaper(
        "Language",
        "English (section 3); any (section 8)",
        "any",
        "other",
        "The paper does not say how English was told.",
    )
    mark = _against(text.words_at_least, 3, less_is_stricter=False)
    yield OfPaper(
        "Words, at least",
        "3",
        f"{text.words_at_least:,}",
        mark,
        "The paper names no tokenizer; words here are runs of letters and digits.",
    )
    yield OfPaper(
        "Words, at most", "20", f"{text.words_at_most:,}", _against(text.words_at_most, 20, less_is_stricter=True)
    )
    yield OfPaper(
        "Images of a text, at most",
        "10",
        f"{text.images_per_text_at_most:,}",
        _against(text.images_per_text_at_most, 10, less_is_stricter=True),
    )
    captioned = config.image.texts_per_image_at_most
    yield OfPaper(
        "Texts of an image, at most", "1,000", f"{captioned:,}", _against(captioned, 1_000, less_is_stricter=True)
    )
    said, size = "100,000,000 most frequent unigrams and bigrams", text.vocabulary_size
    if vocabulary.get("all"):
        yield OfPaper(
            "Vocabulary",
            said,
            f"{size:,}",
            "off",
            f"The pool has only {vocabulary.get('distinct', 0):,} n-grams: none is rare.",
        )
    else:
        note = "" if size == 100_000_000 else "A share of a small pool is another rule than a share of the web."
        yield OfPaper("Vocabulary", said, f"{size:,}", _against(size, 100_000_000, less_is_stricter=True), note)


def _images(config: CurateConfig) -> Iterator[OfPaper]:
    image = config.image
    side, below = image.short_side_above_px, image.aspect_ratio_below
    yield OfPaper(
        "Short side, above",
        "200 px",
        f"{side:,} px",
        _against(side, 200, less_is_stricter=False),
        "200 itself goes, as in the paper.",
    )
    yield OfPaper(
        "Aspect ratio, below",
        "3",
        f"{below:g}",
        _against(below, 3, less_is_stricter=True),
        "3 itself goes, as in the paper.",
    )
    if image.nsfw.model:
        said = f"score of {image.nsfw.drop_at_or_above:g} or more goes"
        yield OfPaper(
            "Pornographic images", "removed", said, "other", "The paper names neither classifier nor threshold."
        )
    else:
        yield OfPaper(
            "Pornographic images", "removed", "not looked for", "off", "No classifier was set ([image.nsfw] model)."
        )


def _near_duplicates(config: CurateConfig, near: dict[str, object]) -> Iterator[OfPaper]:
    settings = config.decontaminate
    rule, paper = "Test images", "near-duplicates in all downstream test sets removed"
    if not settings.test_sets:
        yield OfPaper(rule, paper, "not looked for", "off", "No test set was named ([decontaminate] test_sets).")
        return
    names = ", ".join(test_set.name for test_set in settings.named_sets)
    yield OfPaper(
        rule,
        paper,
        names,
        "other",
        "Only the sets that are named here were looked for; name every set that you report results on.",
    )
    note = "Crops and rotated copies may stay: `altalign calibrate` measures which."
    yield OfPaper("Embedder", "a deep ranking model, not published", settings.embedder, "other", note)
    above = near.get("similarity_above", settings.similarity_above)
    is_calibrated = f", from {settings.calibration}" if settings.calibration else ""
    mark = _against(float(str(above)), 0.975, less_is_stricter=True)
    yield OfPaper("Cosine, above", "0.975", f"{above}{is_calibrated}", mark, "Their number is for their embedder.")
    clusters = int(str(near.get("clusters", settings.clusters)))
    note = f"{settings.clusters:,} were asked for; 64 images make one." if clusters < settings.clusters else ""
    yield OfPaper(
        "Clusters",
        "4,096, of the embedder's training images",
        f"{clusters:,}, of the run's own",
        "same" if clusters == 4_096 else "other",
        note,
    )
    buckets = (
        f"{settings.bucket_clusters} of {settings.nearest_clusters} clusters"
        if settings.require_bucket
        else "cosine alone"
    )
    is_same = settings.require_bucket and (settings.bucket_clusters, settings.nearest_clusters) == (3, 10)
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
    DropReason.RECORD_BROKEN: "What cannot be read has to be counted somewhere.",
    DropReason.ALT_MISSING: "No caption, no pair.",
    DropReason.ALT_EMPTY: "No caption, no pair.",
    DropReason.TEXT_EMPTY: "No caption, no pair.",
    DropReason.URL_INVALID: "Without an address and without the image there is nothing to fetch.",
    DropReason.PAIR_REPEATED: "The same pair twice adds nothing but weight.",
    DropReason.IMAGE_UNDECODABLE: "What cannot be decoded cannot be trained on.",
    DropReason.IMAGE_DAMAGED: "What cannot be decoded cannot be trained on.",
    DropReason.IMAGE_TOO_MANY_PIXELS: "Against decompression bombs.",
    DropReason.IMAGE_BLOCKED: "Lists of hashes, legal and ethical.",
    DropReason.NEAR_DUPLICATE_IN_POOL: "Of near-duplicates within the pool one image stays.",
}


def _ours(config: CurateConfig, counts: Rows) -> list[Ours]:
    rows = {(stage, reason.value): 0 for stage in Stage for reason in REASONS[stage]}
    for (stage, _, reason), count in counts.items():
        rows[Stage(stage), reason] = rows.get((Stage(stage), reason), 0) + count
    ours = [reason for reason in DropReason if reason not in OF_PAPER and reason not in REASONS[Stage.FETCH]]
    why = about() | _WHY
    told = [
        Ours(reason.value, why[reason], sum(count for (_, name), count in rows.items() if name == reason))
        for reason in ours
    ]
    unfetched = sum(rows[Stage.FETCH, reason.value] for reason in REASONS[Stage.FETCH])
    told.append(
        Ours(
            "not_in_archive, http_*",
            "Images that could not be had; the paper does not say how many it lost.",
            unfetched,
        )
    )
    if config.shards.portable or config.shards.resize_short_side_px:
        told.append(
            Ours(
                "stored images",
                "Every image is stored as JPEG" + (", made smaller." if config.shards.resize_short_side_px else "."),
                None,
            )
        )
    return told


def _warnings(config: CurateConfig, vocabulary: dict[str, object], near: dict[str, object]) -> Iterator[str]:
    """What has to be said in words."""
    if not config.image.nsfw.model:
        yield "Pornographic images were not looked for: no classifier was set. The paper removed them; these data may hold some."
    if not config.decontaminate.test_sets:
        yield "Test images were not looked for: no test set was named. Results on any test set may be of images that a model was trained on."
    elif config.decontaminate.embedder in ("dct", "phash"):
        named = config.decontaminate.embedder
        yield f"Test images were looked for with the embedder {named}, which does not find crops or rotated copies; such copies of test images may be left."
    if near.get("flat_test_images"):
        yield f"{near['flat_test_images']:,} test images are flat, and were found by their bytes alone."
    if vocabulary.get("all"):
        yield "No n-gram was rare: the pool has fewer of them than the vocabulary would hold."
    off = [
        name
        for name, is_on in (("X-Robots-Tag", config.fetch.honour_opt_out), ("robots.txt", config.fetch.honour_robots))
        if not is_on
    ]
    if config.fetch.source == "web" and off:
        yield f"{' and '.join(off)} were not honoured while images were fetched."
