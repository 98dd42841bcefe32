"""The pipeline, run as a user runs it, equals the plain reference: every verdict, value, count, table and row of a shard."""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from gzip import GzipFile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from PIL import Image

from altalign.reasons import KEPT, DropReason, Stage
from tests.end_to_end.inputs import IMAGE_LIMITS, Part, Picture, drawn, pictures, placed, write_parts
from tests.end_to_end.oracle import (
    EVERY_REASON_OF_AN_ARCHIVE,
    assert_counts,
    assert_finished,
    assert_joint,
    assert_judged,
    assert_same,
    assert_tables,
    curate,
    read_dropped,
    read_survivors,
    reasons_of,
)
from tests.golden import candidates_of, failed_of, pool_cases, settings_of
from tests.reference.curation import Candidate, Curation, ImageFacts, Settings, judge, reconcile, run, tables
from tests.shared_data import SHARED, needs_shared
from tests.strategies import SHA256S, TRUSTED_URLS, nasty_captions, pools, small_settings

ROOT = Path(__file__).parents[2]
TEXT_FORMS = ("parquet", "csv", "jsonl", "tsv", "jsonl.zst", "csv.gz")


def check(folder: Path, parts: Sequence[Part], settings: Settings, *args: str) -> Curation:
    """Run the parts and hold all that the run left against the reference; with `--until judge` as far as that goes."""
    candidates, images = placed(parts)
    curation = run(candidates, {identity: picture.facts for identity, picture in images.items()}, settings)
    assert reconcile(curation.counts, curation.received) == []
    at = curate(folder, write_parts(folder, parts), settings, *args)
    assert_judged(at, curation, parts)
    if not args:
        assert_finished(at, curation, images)
    gone = {outcome.candidate.position for outcome in curation.dropped if outcome.stage is Stage.EXTRACT}
    pool = [candidate for candidate in candidates if candidate.position not in gone]
    facts = tables(pool, settings)
    assert_tables(at, facts, settings)
    assert_joint(at, facts, judge(pool, settings))
    return curation


# Golden pools ----------------------------------------------------------------------------------------------------------------


def in_parts(candidates: Sequence[Candidate], turn: int) -> list[Part]:
    """Neighbours of one source are a part, its form the next in turn of those that hold its rows as they are."""
    parts: list[list[Candidate]] = []
    for candidate in candidates:
        if not parts or parts[-1][0].source != candidate.source or len(parts[-1]) == 4:
            parts.append([])
        parts[-1].append(candidate)
    found = []
    for number, rows in enumerate(parts):
        if any(row.image_sha256 is not None for row in rows):
            form = "images.parquet"
        elif len({row.page_url is None for row in rows}) > 1:
            form = ("parquet", "jsonl")[(turn + number) % 2]  # a null beside an empty page URL
        else:
            form = TEXT_FORMS[(turn + number) % len(TEXT_FORMS)]
        found.append(Part(rows[0].source, form, rows))
    return found


def with_pictures(candidates: Sequence[Candidate], turn: int = 0) -> list[Candidate]:
    """The made-up digests of an image in hand replaced by those of pictures, which bytes have."""
    digests = [picture.sha256 for picture in pictures().values()]
    of = {digest: digests[(turn + number) % len(digests)] for number, digest in enumerate(SHA256S)}
    return [replace(c, image_sha256=None if c.image_sha256 is None else of[c.image_sha256]) for c in candidates]


@pytest.mark.parametrize(
    ("turn", "case"), [(n, case) for n, case in enumerate(pool_cases()) if case["rows"]], ids=lambda case: case["name"] if isinstance(case, dict) else ""
)
def test_golden_pools_are_judged_as_written_in_every_form_of_table(tmp_path: Path, turn: int, case: dict[str, Any]):
    candidates = with_pictures(candidates_of(case))
    parts = in_parts(candidates, turn)
    curation = check(tmp_path, parts, settings_of(case), "--until", "judge")
    outcomes = judge(placed(parts)[0], settings_of(case))
    expected = [
        (o.key, row["verdict"], failed_of(row), row.get("words", o.words), outcomes[row["repeats"]].key if "repeats" in row else None)
        for o, row in zip(outcomes, case["rows"], strict=True)
    ]
    dropped = [tuple(row[name] for name in ("key", "reason", "failed", "words", "kept_key")) for row in read_dropped(tmp_path / "run", Stage.JUDGE)]
    kept = [(row["key"], KEPT, [], row["words"], None) for row in read_survivors(tmp_path / "run")]
    assert_same(map(list, [*dropped, *kept]), map(list, expected), "as written")
    assert Counter(str(o.reason or KEPT) for o in outcomes) == Counter({reason: n for (stage, reason), n in _by_reason(curation).items() if stage == "judge"})


def _by_reason(curation: Curation) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (stage, _, reason), rows in curation.counts.items():
        found[stage, reason] += rows
    return found


# Generated pools -------------------------------------------------------------------------------------------------------------


def small_parts(table: list[Candidate], pages: list[Candidate], turn: int) -> list[Part]:
    """A pool in four inputs of two sources: a table of images, one of text, an archive, a tar."""
    table = with_pictures(table, turn)
    third = len(table) // 3 + 1
    texts = TEXT_FORMS[turn % len(TEXT_FORMS)]
    archived = [(url, name) for n, (url, name) in enumerate(zip(TRUSTED_URLS, pictures(), strict=False)) if (n + turn) % 3]
    return [
        Part("north", "images.parquet", table[:third]),
        Part("south", texts, table[third : 2 * third]),
        Part("north", "warc.gz", pages, archived),
        Part("south", "tar", table[2 * third :]),
    ]


@cache
def generated() -> list[tuple[list[Candidate], list[Candidate], Settings]]:
    """Pools of a table and of pages, with settings."""
    return drawn(st.tuples(pools(max_size=40), pools(kind="warc", max_size=10), small_settings()), 150)


@pytest.mark.parametrize("number", range(10))
def test_generated_pools_end_as_in_the_reference(tmp_path: Path, number: int):
    table, pages, settings = max(generated()[number::10], key=lambda drawn: len(drawn[0]))  # the small ones say little
    settings = replace(settings, **IMAGE_LIMITS, blocked_hashes=frozenset({pictures()["blocked"].sha256}), nsfw_at_or_above=None)
    check(tmp_path, small_parts(table, pages, number), settings)


def nasty_parts() -> list[Part]:
    """Thousands of rows in every form, from strategies: images shared by all inputs, hosts that differ, broken lines, a page of every fault."""
    tables_of = [table for table, _, _ in generated()]
    captions = drawn(nasty_captions(), 400)
    names = list(pictures())
    forms = ("images.parquet", "jsonl", "tar", "csv", "parquet", "warc.gz", "tsv", "images.parquet", "jsonl.zst", "tar", "csv.gz", "warc.gz")
    parts: list[Part] = []
    for number, form in enumerate(forms):
        rows = [row for n, table in enumerate(tables_of) if n % len(forms) == number for row in _moved(with_pictures(table, n), n)]
        rows += [Candidate(f"http://c{n % 60}.example/{n % 5}.png", caption, image_sha256=_sha(names[n % len(names)])) for n, caption in enumerate(captions)][
            number :: len(forms)
        ]
        rows = [replace(row, decode_entities=number % 3 == 1) for row in rows]
        archived = []
        if form == "warc.gz":
            rows = [replace(row, image_url=_as_in_page(row.image_url)) for row in rows if row.page_url != ""]
            archived = [(f"http://{host}{n}.example/{n % 5}.png", names[(n + number) % len(names)]) for n in range(60) for host in "ac"]
            archived += [(f"http://a{n}.example/1.jpg", names[(3 * n + number) % len(names)]) for n in range(40) if n % 4]
        if form in ("jsonl", "csv", "tsv", "warc.gz"):
            rows[3:3], rows[9:9] = [Candidate(None, None, broken=True)], [Candidate(None, None, broken=True)]
        parts.append(Part(("north", "south", "east")[number % 3], form, rows, archived))
    return parts


def _sha(name: str) -> str:
    return pictures()[name].sha256


def _moved(rows: Sequence[Candidate], number: int) -> Iterator[Candidate]:
    """To a host of their own for two pools of three, so that the pool has more than a handful of images."""
    for row in rows:
        url = row.image_url
        yield replace(row, image_url=url.replace("a.example", f"a{number % 40}.example") if url and number % 3 else url)


def _as_in_page(url: str | None) -> str | None:
    """A URL that a page resolves to itself, or one that is none."""
    return url if url is None or re.fullmatch(r"http://\w+\.example/[\w./?=&-]*", url, re.ASCII) else "ftp://a.example/1.jpg"


def test_a_big_nasty_pool_cut_into_many_units_ends_as_in_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "pool.ROWS_PER_UNIT": 150,
        "tables.ROWS_PER_PARTITION": 50,
        "judge.ROWS_PER_PARTITION": 100,
        "judge.IMAGES_PER_UNIT": 3,
        "tables.BLOCK": 37,
        "read.found.STRETCH_ROWS": 23,
        "read.webdataset.STRETCH_ROWS": 29,
        "extract.SAMPLE_PER_REASON": 10_000,
    }.items():
        monkeypatch.setattr(f"pipelines.{name}", value)
    limits = {"words_at_least": 1, "words_at_most": 6, "images_per_text_at_most": 30, "texts_per_image_at_most": 60, "vocabulary_size": 600}
    settings = Settings(**limits, **IMAGE_LIMITS, blocked_hashes=pictures()["blocked"].facts.hashes)
    curation = check(tmp_path, nasty_parts(), settings)
    assert sum(curation.received["extract", source] for source in ("north", "south", "east")) > 3000
    assert reasons_of(curation) == EVERY_REASON_OF_AN_ARCHIVE
    assert len(curation.kept) > 100
