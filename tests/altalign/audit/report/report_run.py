"""A small run folder made by hand, and what a rerun of it would keep: candidates one by one, counted by plain loops."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from altalign.audit.checks import Check
from altalign.data.audit_tables import (
    DROPPED_IMAGES,
    EDGE_NGRAMS,
    FAILED_ROWS,
    FREQUENT,
    FUNNEL,
    GALLERY,
    HOSTS,
    IMAGE_MEASURES,
    SAMPLES,
    SCRIPTS,
    SIMILARITY,
    TEXT_MEASURES,
    AuditTable,
)
from altalign.data.schema import COUNTS
from tests.reference.curation import RULES_OF_MEASURE
from tests.support.pictures import encoded

COSINES = (400, 700, 900, 960, 975, 976, 990, 999)

CONFIG = """
[run]
folder = "run"

[[input]]
name = "web"
paths = ["*.warc.gz"]

[[input]]
name = "table"
kind = "table"
paths = ["*.parquet"]

[text]
vocabulary_size = {vocabulary}

[decontaminate]
test_sets = ["tests/coco"]
"""


PASSED = (
    Check("counts add up", passed=True, detail="received = kept + dropped", checked=20),
    Check("keys are unique", passed=True, detail="", checked=300),
)


@dataclass(frozen=True)
class Limits:
    """What a run is held against."""

    words_at_least: int = 3
    words_at_most: int = 20
    images_per_text: int = 10
    texts_per_image: int = 1_000
    rarest: int = 4  # the smallest count of the vocabulary
    short_side: int = 200
    aspect: Fraction = Fraction(3)


@dataclass(frozen=True)
class Candidate:
    """A candidate with all that would be measured of it, whether a run comes so far or not."""

    number: int
    source: str
    extract: str | None
    words: int
    rarest: int
    images_per_text: int
    texts_per_image: int
    is_repeated: bool
    is_fetched: bool
    width: int | None
    height: int | None
    is_blocked: bool
    is_near: bool

    def judged(self, limits: Limits) -> list[str]:
        """All text rules that hold, in order."""
        failed = []
        for holds, reason in (
            (self.words == 0, "text_empty"),
            (0 <= self.words < limits.words_at_least and self.words > 0, "text_too_short"),
            (self.words > limits.words_at_most, "text_too_long"),
            (self.images_per_text > limits.images_per_text, "text_on_too_many_images"),
            (self.words > 0 and self.rarest < limits.rarest, "text_has_rare_ngram"),
            (self.texts_per_image > limits.texts_per_image, "image_has_too_many_texts"),
        ):
            if holds:
                failed.append(reason)
        return failed or (["pair_repeated"] if self.is_repeated else [])

    def of_size(self, limits: Limits) -> list[str]:
        """The rules of size and shape that hold."""
        if self.width is None or self.height is None:
            return []
        short, long = sorted((self.width, self.height))
        held = (
            (short <= limits.short_side, "image_too_small"),
            (Fraction(long, short) >= limits.aspect, "image_too_elongated"),
        )
        return [reason for holds, reason in held if holds]

    def image(self, limits: Limits) -> list[str]:
        """All image rules that hold, in order."""
        if self.width is None:
            return ["image_undecodable"]
        return [*self.of_size(limits), *(["image_blocked"] if self.is_blocked else [])]


def candidates(count: int = 2_000, seed: int = 5) -> list[Candidate]:
    """A pool in which every rule has its cases."""
    rng = random.Random(seed)
    return [_candidate(rng, number) for number in range(count)]


def _candidate(rng: random.Random, number: int) -> Candidate:
    short = rng.choice([1, 50, 150, 199, 200, 201, 210, 224, 225, 300, 333, 512, 1024, 1500])
    long = int(short * rng.choice([1, 1.2, 1.25, 1.5, 2, 2.5, 2.99, 3, 3.01, 4, 7, 12])) + rng.choice([0, 1])
    sides = [short, max(short, long)]
    rng.shuffle(sides)
    is_broken = rng.random() < 0.03
    return Candidate(
        number=number,
        source=rng.choice(["web", "web", "table"]),
        extract=rng.choice(["alt_missing", "alt_empty", "record_broken"]) if rng.random() < 0.1 else None,
        words=rng.choice([0, *range(1, 31), *range(3, 12), *range(4, 10), 75, 260]),
        rarest=rng.choice([1, 3, 4, 5, 8, 11, 16, 20, 50, 120, 800, 5_000]),
        images_per_text=rng.choice([1, 1, 1, 1, 1, 1, 2, 10, 11, 40, 1_023, 1_500, 3_000]),
        texts_per_image=rng.choice([1, 1, 1, 1, 1, 1, 1, 5, 1_000, 1_001, 1_024, 5_000]),
        is_repeated=rng.random() < 0.05,
        is_fetched=rng.random() < 0.9,
        width=None if is_broken else sides[0],
        height=None if is_broken else sides[1],
        is_blocked=rng.random() < 0.04,
        is_near=rng.random() < 0.06,
    )


def outcome(candidate: Candidate, limits: Limits) -> tuple[str, list[str]]:
    """The stage that a candidate ends in, and the rules that hold there; "" and none for one that is kept."""
    if candidate.extract:
        return "extract", [candidate.extract]
    for stage, failed in (
        ("judge", candidate.judged(limits)),
        ("fetch", [] if candidate.is_fetched else ["not_in_archive"]),
        ("image", candidate.image(limits)),
        ("decontaminate", ["near_duplicate_of_test_image"] if candidate.is_near else []),
    ):
        if failed:
            return stage, failed
    return "", []


@cache
def log2(count: int) -> int:
    """Eight times log2, rounded, in whole numbers: the largest v with count ** 16 >= 2 ** (2 v - 1)."""
    return max((v for v in range(1, 256) if count**16 >= 2 ** (2 * v - 1)), default=0)


def write(
    folder: Path, pool: list[Candidate], *, limits: Limits = Limits(), extra: str = "", but: Iterable[str] = ()
) -> Path:
    """A finished run of this pool; files named in `but` are left out."""
    run = folder / "run"
    (run / "audit" / "near_duplicates").mkdir(parents=True)
    (run / "tables").mkdir()
    (run / "config.toml").write_text(CONFIG.format(vocabulary=_in_vocabulary(limits)) + extra, encoding="utf-8")
    _write_facts(run, pool, limits)
    _write_measures(run, pool, limits)
    _write_strings(run, pool, limits)
    for name in but:
        (run / name).unlink()
    return run


# n-grams by count
NGRAMS = {1: 900, 2: 300, 3: 120, 4: 90, 5: 80, 8: 60, 11: 33, 16: 30, 20: 21, 50: 12, 120: 9, 800: 4, 5_000: 2}


def _in_vocabulary(limits: Limits) -> int:
    return sum(ngrams for count, ngrams in NGRAMS.items() if count >= limits.rarest)


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _table(run: Path, of: AuditTable, rows: Iterable[tuple[Any, ...]]) -> None:
    """A table of the audit from its rows, whose values are in the order of its columns."""
    named = [dict(zip(of.schema.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(named, of.schema), run / of.path)


def _counted(run: Path, of: AuditTable, rows: "Counter[tuple[Any, ...]]") -> None:
    _table(run, of, [(*row, number) for row, number in rows.items()])


STAGES = ("extract", "judge", "fetch", "image", "decontaminate")


def counts(pool: list[Candidate], limits: Limits) -> "Counter[tuple[str, str, tuple[str, ...]]]":
    """Rows by stage, source and all rules that hold there; none for what is kept."""
    rows: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for each in pool:
        end, failed = outcome(each, limits)
        for stage in STAGES:
            rows[stage, each.source, tuple(failed) if stage == end else ()] += 1
            if stage == end:
                break
    return rows


def _write_facts(run: Path, pool: list[Candidate], limits: Limits) -> None:
    rows = counts(pool, limits)
    _counted(run, FAILED_ROWS, rows)
    first: Counter[tuple[str, str, str]] = Counter()
    for (stage, source, failed), n in rows.items():
        first[stage, source, failed[0] if failed else "kept"] += n
    _counted(run, AuditTable("counts.parquet", COUNTS), first)
    kept = sum(n for (stage, _, reason), n in first.items() if (stage, reason) == ("decontaminate", "kept"))
    _json(run / "summary.json", {"stages": [], "pairs": kept, "images": kept - 5, "bytes": 7_654_321})
    _json(run / "manifest.json", {"shards": [], "pairs": kept})
    time = {"started": "2026-01-02T03:04:05Z", "finished": "2026-01-02T03:04:09Z", "seconds": 4.0, "attempts": 1}
    versions = {"altalign": "0.1.0", "schema_version": 1, "rules_version": "2"}
    stages = dict.fromkeys((*STAGES[:2], "fetch", "write"), time)
    _json(run / "run.json", {**versions, "engine": {"runner": "embedded", "workers": 0}, "stages": stages})
    size, distinct = _in_vocabulary(limits), sum(NGRAMS.values())
    vocabulary = {"rows": size, "vocabulary_size": size, "threshold": limits.rarest, "distinct": distinct, "all": False}
    _json(run / "tables/vocabulary.json", vocabulary)
    _write_funnel(run, kept - 5)
    _json(run / "audit/near_duplicates/found.json", {"test_sets": {"coco": 50}, "similarity_above": 0.975})
    histograms = {
        "images_per_text": Counter(min(each.images_per_text, 5_000) for each in pool),
        "texts_per_image": Counter(each.texts_per_image for each in pool),
        "ngram_count": NGRAMS,
    }
    _json(run / "audit/histograms.json", {name: sorted(values.items()) for name, values in histograms.items()})


FUNNEL_OF_ALL = {
    "pool": (None, 3_345),
    "extract": (777, None),
    "judge": (666, None),
    "fetch": (600, 5_000),
    "image": (555, 4_000),
    "decontaminate": (None, 3_000),
}
DROPPED_OF_ALL = {"image_too_small": 17, "image_undecodable": 1}


def of_source(amount: int | None, source: str) -> int | None:
    """Images or bytes of one of the two sources, which share some."""
    return amount if amount is None else amount * {"web": 3, "table": 2}[source] // 4


def _write_funnel(run: Path, images: int) -> None:
    amounts = {**FUNNEL_OF_ALL, "decontaminate": (images, 3_000), "shards": (images, 7_654_321)}
    rows = [(step, None, *amount) for step, amount in amounts.items()]
    rows += [
        (step, source, *(of_source(one, source) for one in amount))
        for step, amount in amounts.items()
        for source in ("table", "web")
    ]
    _table(run, FUNNEL, rows)
    _table(run, DROPPED_IMAGES, [("image", reason, n) for reason, n in DROPPED_OF_ALL.items()])


def _bounded(value: int, limit: int) -> int:
    return 0 if value <= limit else value if value < 1_024 else 1_024 + log2(value)


def _write_measures(run: Path, pool: list[Candidate], limits: Limits) -> None:
    text, image = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for each in (each for each in pool if not each.extract):
        level = 255 if each.words == 0 else log2(each.rarest) if each.rarest >= limits.rarest else 0
        measured = {
            "words": min(each.words, 1_023),
            "rarest_log2": level,
            "images_per_text": _bounded(each.images_per_text, limits.images_per_text),
            "texts_per_image": _bounded(each.texts_per_image, limits.texts_per_image),
        }
        failed = {*each.judged(limits)} - {"pair_repeated"}
        text.update((name, value, bool(failed - RULES_OF_MEASURE[name])) for name, value in measured.items())
        if each.judged(limits) or not each.is_fetched:
            continue
        short, long = sorted((each.width or 0, each.height or 0))
        known = each.width is not None
        sizes = {
            "short_side_px": min(short, 1_024) if known else None,
            "aspect_percent": min(long * 100 // short, 1_001) if known else None,
            "nsfw_percent": each.number % 100 if known else None,
        }
        failed = {*each.image(limits)}
        image.update((name, value, bool(failed - RULES_OF_MEASURE[name])) for name, value in sizes.items())
    for table, rows in ((TEXT_MEASURES, text), (IMAGE_MEASURES, image)):
        _counted(run, table, rows)


# Strings and pictures ------------------------------------------------------------------------------------------------


def picture(seed: int, side: int = 96, kind: str = "WEBP") -> bytes:
    """A small picture."""
    return encoded(Image.effect_noise((side, side), 40 + seed % 30).convert("RGB"), kind, quality=70)


def sample(stage: str, reason: str, number: int, **columns: Any) -> dict[str, Any]:
    """A row of audit/samples.parquet."""
    row: dict[str, Any] = dict.fromkeys(SAMPLES.schema.names)
    row |= {"key": f"{number:032x}", "image_id": f"{number + 7:032x}", "caption": f"a red boat {number}"}
    row |= {"image_url": f"https://img.example/{number}.jpg", "page_url": f"https://pages.example/{number}"}
    row |= {"source": "web", "stage": stage, "reason": reason, "failed": [] if stage == "kept" else [reason]}
    return {**row, "words": 4, **columns}


def write_samples(run: Path, rows: list[dict[str, Any]]) -> None:
    """audit/samples.parquet."""
    pq.write_table(pa.Table.from_pylist(rows, schema=SAMPLES.schema), run / SAMPLES.path)


def write_captions(run: Path, kept: list[str], dropped: list[str]) -> None:
    """The captions of side-cars, and of what the text rules dropped, one file each."""
    for folder, captions in (("shards", kept), ("dropped/judge", dropped)):
        (run / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"caption": pa.array(captions, pa.string())}), run / folder / "000000-00000.parquet")


def _write_strings(run: Path, pool: list[Candidate], limits: Limits) -> None:
    rows = [sample("kept", "kept", number, picture=picture(number), width=300, height=240) for number in range(4)]
    seen = set()
    for each in pool:
        stage, failed = outcome(each, limits)
        if stage and (stage, failed[0]) not in seen:
            seen.add((stage, failed[0]))
            rows += [
                sample(stage, failed[0], 1_000 + 2 * each.number + more, failed=failed, words=each.words)
                for more in range(2)
            ]
    write_samples(run, rows)
    write_captions(run, ["a red boat", "a blue boat", "a red boat on the sea"], ["click here", "logo"])
    frequent = [("text", "click here", 3_000), ("text", "logo", 40), ("image", "https://img.example/1.jpg", 5_000)]
    _table(run, FREQUENT, frequent)
    _table(run, EDGE_NGRAMS, [("red boat", 4, 16, True), ("qx", 2, 8, False)])
    _table(run, HOSTS, [("a.example", 40, 30, 10, 4), ("b.example", 60, 60, 50, 4)])
    scripts = [("Latin", "kept", 5, 2), ("Latin", "text_too_short", 3, 2), ("Han", "text_too_long", 2, 2)]
    _table(run, SCRIPTS, scripts)
    pairs = zip(COSINES, ["below"] * 4 + ["above"] * 4, (5, 4, 3, 2, 1, 1, 1, 1), strict=True)
    _table(run, SIMILARITY, pairs)
    near = (0.98, True, "ab" * 16, None, "coco", "1.jpg", picture(1, 64, "JPEG"), picture(2, 64, "JPEG"))
    _table(run, GALLERY, [(kind, *near) for kind in ("just above", "just below", "dropped")])
