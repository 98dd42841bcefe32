"""Compares the run's rules with ALIGN's (arXiv 2102.05918v2, section 3, appendix A), and lists our own."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import PAPERS, RULES, WORDS, DropReason, Stage
from altalign.filters import text
from altalign.rules.reason_words import of_own
from altalign.rules.rule import Paper, value_of
from altalign.settings.curate import OWN_TABLES, CurateConfig

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
    """A rule that is not in the paper, and the rows that it dropped."""

    rule: str
    why: str
    rows: int


@dataclass(frozen=True)
class Fidelity:
    """The rules of the paper, those of ours that dropped rows, and warnings to read before calling the data ALIGN's."""

    rules: list[OfPaper]
    ours: list[Ours]
    warnings: list[str]


def of_run(run: RunFolder, counts: Mapping[tuple[str, str, str], int]) -> Fidelity:
    """Compares the rules of a run with the paper's."""
    config, rows, stages = run.config, Counter[str](), dict[str, set[str]]()
    for (stage, _, reason), number in counts.items():
        rows[reason] += number
        stages.setdefault(reason, set()).add(stage)
    whys = {reason: words.why or words.meaning for reason, words in WORDS.items() if reason not in PAPERS}
    of_select = {reason for reason, found in stages.items() if found == {Stage.SELECT}}  # by no purpose of curation
    whys |= {reason: f"{run.conditions[reason]}." for reason in whys.keys() & run.conditions.keys() & of_select}
    for stage in Stage:
        whys |= {reason: f"A rule of this run's own: {words}." for reason, words in of_own(stage, config).items()}
    ours = [Ours(reason, why, rows[reason]) for reason, why in whys.items() if rows[reason]]
    rules = [*_rules(config, run.json("tables/vocabulary.json"))]
    rules += _near_duplicates(config, run.json("audit/near_duplicates/found.json"))
    return Fidelity(rules, ours, [*_warnings(config)])


def _against(value: float, paper: Paper) -> Mark:
    if value == paper.number:
        return "same"
    return "stricter" if (value < (paper.number or 0)) == paper.less_is_stricter else "looser"


def _rules(config: CurateConfig, vocabulary: Mapping[str, Any]) -> Iterator[OfPaper]:
    """The rules on columns that are of the paper."""
    note = "The paper does not say how it recognized English."
    yield OfPaper("Language", "English (section 3); any (section 8)", "any", "other", note)
    for rule, paper in ((rule, rule.paper) for rules in RULES.values() for rule in rules):
        if paper is None:
            continue
        value = value_of(config, rule.words.threshold)
        if rule.words.on_with and not value_of(config, rule.words.on_with):
            yield OfPaper(paper.title, paper.says, "not checked", "off", paper.off)
            continue
        if paper.number is None:
            yield OfPaper(paper.title, paper.says, f"dropped at a score of {value:g} or more", "other", paper.note)
            continue
        mark, note = _against(value, paper), paper.note
        if rule is text.text_has_rare_ngram:  # its size says little where the pool is small
            note = "" if mark == "same" else "On a pool smaller than the web, the same rank is a different rule."
            if vocabulary.get("all"):
                mark, note = "off", f"The pool has only {vocabulary.get('distinct', 0):,} n-grams, so none is rare."
        yield OfPaper(paper.title, paper.says, paper.shown.format(value), mark, note)


def _near_duplicates(config: CurateConfig, near: Mapping[str, Any]) -> Iterator[OfPaper]:
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
    cosine = PAPERS[DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE]
    above = near.get("similarity_above", settings.similarity_above)
    here = f"{above}, from {settings.calibration}" if settings.calibration else f"{above}"
    yield OfPaper(cosine.title, cosine.says, here, _against(above, cosine), cosine.note)
    clusters = near.get("clusters", settings.clusters)
    paper, mark = "4,096, of the embedder's training images", "same" if clusters == 4_096 else "other"
    yield OfPaper("Clusters", paper, f"{clusters:,}, of the run's own images", mark)
    buckets, mark = ("3 of 10 clusters", "same") if settings.require_bucket else ("cosine alone", "other")
    yield OfPaper("Buckets", "3 of 10 clusters", buckets, mark)


def _warnings(config: CurateConfig) -> Iterator[str]:
    """Warnings in words."""
    if config.text.tables:
        is_own = config.text.tables == OWN_TABLES
        tables = "tables that the run had before more was added" if is_own else f"tables {config.text.tables}"
        yield (
            f"Texts were judged by the {tables} ([text] tables): which n-grams are rare, and on how many images a text "
            "is, was counted in another pool."
        )
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
    elif (name := config.decontaminate.embedder) in ("dct", "phash"):
        yield f"The embedder {name} does not find crops or rotated copies, so such copies of test images may remain."
    honoured = {"Reservations": config.fetch.purpose != "keep all", "robots.txt": config.fetch.honour_robots}
    off = [name for name, is_on in honoured.items() if not is_on]
    if config.fetch.source == "web" and off:
        yield f"{' and '.join(off)} were not honoured while images were fetched."
