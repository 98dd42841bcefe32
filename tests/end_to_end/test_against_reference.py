"""The pipeline, run as a user runs it, equals the plain reference: every verdict, value, count, table and row of a
shard.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pytest
from hypothesis import strategies as st

from altalign.data.reasons import KEPT, Stage
from altalign.storage import parquet
from tests.end_to_end.audited import assert_failed, assert_image_measures, assert_text_measures
from tests.end_to_end.inputs import (
    HANDBOOKS,
    IMAGE_LIMITS,
    Part,
    drawn,
    handbooks,
    pictures,
    placed,
    with_pictures,
    write_parts,
)
from tests.end_to_end.oracle import (
    EVERY_REASON_OF_AN_ARCHIVE,
    assert_finished,
    assert_judged,
    assert_same,
    assert_tables,
    curate,
    read_dropped,
    read_survivors,
    reasons_of,
)
from tests.golden import candidates_of, failed_of, pool_cases, settings_of
from tests.reference.curation import Candidate, Curation, Settings, judge, reconcile, run, tables
from tests.shared_data import SHARED, needs_shared
from tests.strategies import TRUSTED_URLS, nasty_captions, pools, small_settings

pytestmark = pytest.mark.runs

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
    facts = tables([candidate for candidate in candidates if candidate.position not in gone], settings)
    assert_tables(at, facts, settings)
    assert_text_measures(at, facts, curation)
    if not args:
        assert_failed(at, curation)
        assert_image_measures(at, curation, {identity: picture.facts for identity, picture in images.items()})
    return curation


# Golden pools ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.everyday
@pytest.mark.parametrize(
    ("turn", "case"),
    [(n, case) for n, case in enumerate(pool_cases()) if case["rows"]],
    ids=lambda case: case["name"] if isinstance(case, dict) else "",
)
def test_golden_pools_are_judged_as_written_in_every_form_of_table(tmp_path: Path, turn: int, case: dict[str, Any]):
    candidates = with_pictures(candidates_of(case))
    parts = in_parts(candidates, turn)
    curation = check(tmp_path, parts, settings_of(case), "--until", "judge")
    outcomes = judge(placed(parts)[0], settings_of(case))
    expected = [
        (
            o.key,
            row["verdict"],
            failed_of(row),
            row.get("words", o.words),
            outcomes[row["repeats"]].key if "repeats" in row else None,
        )
        for o, row in zip(outcomes, case["rows"], strict=True)
    ]
    dropped = [
        tuple(row[name] for name in ("key", "reason", "failed", "words", "kept_key"))
        for row in read_dropped(tmp_path / "run", Stage.JUDGE)
    ]
    kept = [(row["key"], KEPT, [], row["words"], None) for row in read_survivors(tmp_path / "run")]
    assert_same(map(list, [*dropped, *kept]), map(list, expected), "as written")
    assert Counter(str(o.reason or KEPT) for o in outcomes) == Counter(
        {reason: n for (stage, reason), n in _by_reason(curation).items() if stage == "judge"}
    )


def _by_reason(curation: Curation) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (stage, _, reason), rows in curation.counts.items():
        found[stage, reason] += rows
    return found


# Generated pools ------------------------------------------------------------------------------------------------------


def small_parts(table: list[Candidate], pages: list[Candidate], turn: int) -> list[Part]:
    """A pool in four inputs of two sources: a table of images, one of text, an archive, a tar."""
    table = with_pictures(table, turn)
    third = len(table) // 3 + 1
    texts = TEXT_FORMS[turn % len(TEXT_FORMS)]
    archived = [
        (url, name) for n, (url, name) in enumerate(zip(TRUSTED_URLS, pictures(), strict=False)) if (n + turn) % 3
    ]
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
    # the small ones say little
    table, pages, settings = max(generated()[number::10], key=lambda drawn: len(drawn[0]))
    settings = replace(
        settings, **IMAGE_LIMITS, blocked_hashes=frozenset({pictures()["blocked"].sha256}), nsfw_at_or_above=None
    )
    check(tmp_path, small_parts(table, pages, number), settings)


def nasty_parts() -> list[Part]:
    """Thousands of rows in every form, from strategies: images shared by all inputs, hosts that differ, broken lines, a
    page of every fault.
    """
    tables_of = [table for table, _, _ in generated()]
    captions = drawn(nasty_captions(), 600)
    names = list(pictures())
    forms = (
        "images.parquet",
        "jsonl",
        "tar",
        "csv",
        "parquet",
        "warc.gz",
        "tsv",
        "images.parquet",
        "jsonl.zst",
        "tar",
        "csv.gz",
        "warc.gz",
    )
    parts: list[Part] = []
    for number, form in enumerate(forms):
        rows = [
            row
            for n, table in enumerate(tables_of)
            if n % len(forms) == number
            for row in _moved(with_pictures(table, n), n)
        ]
        rows += _crowded(captions, names)[number :: len(forms)]
        rows = [replace(row, decode_entities=number % 3 == 1) for row in rows]
        archived = []
        if form == "warc.gz":
            rows = [replace(row, image_url=_as_in_page(row.image_url)) for row in rows if row.page_url != ""]
            archived = [
                (f"http://{host}{n}.example/{n % 5}.png", names[(n + number) % len(names)])
                for n in range(60)
                for host in "ac"
            ]
            archived += [
                (f"http://a{n}.example/1.jpg", names[(3 * n + number) % len(names)]) for n in range(40) if n % 4
            ]
        if form in ("jsonl", "csv", "tsv", "warc.gz"):
            rows[3:3], rows[9:9] = [Candidate(None, None, broken=True)], [Candidate(None, None, broken=True)]
        parts.append(Part(("north", "south", "east")[number % 3], form, rows, archived))
    return parts


# Hosts, ports and schemes at the edge of what a WHATWG parser takes.
ODD_URLS = [
    "http://c1.example/1.png\x01",
    "http:/c1.example/1.png",
    "http:///c1.example/1.png",
    "http://%63%31.example/1.png",
    "http://c1..example/1.png",
    "http://c1.example./1.png",
    "http://c1.example:/1.png",
    "http://c1.example:65536/1.png",
    "http://a_b.example/1.png",
    "http://-a.example/1.png",
    "http://xn--a.example/1.png",
    "http://a.xn--/1.png",
    "http://0x7f.1/1.png",
    "http://256.256.256.256/1.png",
    "http://c1.example.09/1.png",
    "http://user:word@c1.example/1.png",
    "http://c1.example<>/1.png",
    "http://c1.example\\1.png",
    "http://\u00ad/1.png",
    "http://c1.example/%",
    "https://c1.example?#",
    "HtTpS://C1.EXAMPLE",
    "https:c1.example",
    "http+x://c1.example/",
    "file:///1.png",
]


def _crowded(captions: Sequence[str], names: Sequence[str]) -> list[Candidate]:
    """Nasty captions on images of every kind, a text on many images, an image with many texts."""
    urls = [f"http://c{n}.example/{n % 5}.png" for n in range(60)]
    rows = [
        Candidate(urls[n % 60], caption, image_sha256=pictures()[names[n % len(names)]].sha256)
        for n, caption in enumerate(captions)
    ]
    rows += [Candidate(url, "a dog") for url in ODD_URLS]
    # a blocked image that passes the text rules, in every form: what is drawn need not have one
    rows += [
        Candidate(f"http://c{n}.example/blocked.png", "dog", image_sha256=pictures()["blocked"].sha256)
        for n in range(12)
    ]
    rows += [Candidate(url, "A dog’s  text") for url in urls]
    return rows + [Candidate(f"{urls[7]}#{n}", f"text {n:b}") for n in range(60)]


def _moved(rows: Sequence[Candidate], number: int) -> Iterator[Candidate]:
    """To a host of their own for two pools of three, so that the pool has more than a handful of images."""
    for row in rows:
        url = row.image_url
        yield replace(row, image_url=url.replace("a.example", f"a{number % 40}.example") if url and number % 3 else url)


def _as_in_page(url: str | None) -> str | None:
    """A URL that a page resolves to itself, or one that is none."""
    return (
        url
        if url is None or re.fullmatch(r"http://\w+\.example/[\w./?=&-]*", url, re.ASCII)
        else "ftp://a.example/1.jpg"
    )


def test_a_big_nasty_pool_cut_into_many_units_ends_as_in_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "pipelines.run.pool.ROWS_PER_UNIT": 100,
        "pipelines.stages.tables.ROWS_PER_PARTITION": 50,
        "pipelines.stages.group_survivors.ROWS_PER_PARTITION": 100,
        "pipelines.stages.group_survivors.IMAGES_PER_UNIT": 3,
        "pipelines.stages.judge.SURVIVORS_BYTES": 2_000,
        "pipelines.stages.group_survivors.UNIT_BYTES": 500,
        "storage.parquet.ROW_GROUP_BYTES": 10_000,
        "filters.words.BLOCK": 37,
        "pipelines.read.stretches.STRETCH_ROWS": 23,
        "pipelines.stages.extract.SAMPLE_PER_REASON": 10_000,
    }.items():
        monkeypatch.setattr(f"altalign.{name}", value)
    # pools of many row groups
    monkeypatch.setitem(vars(parquet.writing)["__wrapped__"].__kwdefaults__, "rows_per_row_group", 90)
    limits = {
        "words_at_least": 1,
        "words_at_most": 8,
        "images_per_text_at_most": 20,
        "texts_per_image_at_most": 40,
        "vocabulary_size": 300,
    }
    settings = Settings(**limits, **IMAGE_LIMITS, blocked_hashes=pictures()["blocked"].facts.hashes)
    curation = check(tmp_path, nasty_parts(), settings)
    assert sum(curation.received["extract", source] for source in ("north", "south", "east")) > 2000
    assert reasons_of(curation) == EVERY_REASON_OF_AN_ARCHIVE
    assert len(curation.kept) > 100


# Pages, and images in hand --------------------------------------------------------------------------------------------


def faulty_pages() -> list[Candidate]:
    """Image elements of every fault of extract, alone and together."""
    captions = [None, "", " \x01\u3000", "a dog", "a &amp; b", "\xa0"]
    urls = [None, "ftp://a.example/1.jpg", "http://[::1/1.jpg", "mailto:a@b", *TRUSTED_URLS]
    return [
        Candidate(url, caption, page_url=f"http://p.example/{n % 3}")
        for n, url in enumerate(urls)
        for caption in captions
    ]


@pytest.mark.everyday
def test_pages_of_every_fault_are_judged_as_in_the_reference(tmp_path: Path):
    check(
        tmp_path,
        [Part("web", "warc.gz", faulty_pages(), [(TRUSTED_URLS[0], "jpeg")])],
        Settings(words_at_least=1, **IMAGE_LIMITS),
    )


@pytest.mark.everyday
def test_white_space_in_front_of_a_fragment_is_of_the_url(tmp_path: Path):
    whole = pictures()["jpeg"].sha256
    rows = [
        Candidate(f"http://a.example/1.jpg{end}", "a dog", image_sha256=whole) for end in ("", " #x", "\u3000#", "#")
    ]
    curation = check(tmp_path, [Part("south", "images.parquet", rows)], Settings(words_at_least=1, **IMAGE_LIMITS))
    assert {row.image_url for row in curation.kept} == {f"http://a.example/1.jpg{end}" for end in ("", " ", "\u3000")}


def test_extract_keeps_a_sample_of_the_smallest_keys_whatever_the_files_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("altalign.pipelines.stages.extract.SAMPLE_PER_REASON", 5)
    rows = [Candidate(f"http://a.example/{n}", (None, "")[n % 2]) for n in range(60)]
    parts = [Part("web", "warc.gz", rows[begin : begin + 13]) for begin in range(0, 60, 13)]
    at = curate(tmp_path, write_parts(tmp_path, parts), Settings(), "--until", "extract")
    keys = {
        reason: sorted(o.key for o in run(placed(parts)[0], {}, Settings()).dropped if o.reason == reason)
        for reason in ("alt_empty", "alt_missing")
    }
    assert [(row["reason"], row["key"]) for row in read_dropped(at, Stage.EXTRACT)] == [
        (reason, key) for reason in keys for key in keys[reason][:5]
    ]


@pytest.mark.everyday
def test_of_several_images_in_hand_the_first_row_that_has_bytes_counts(tmp_path: Path):
    """Across inputs and kinds, whether that row is kept or not; a URL that is none is known by the bytes."""
    jpeg, png, gif, tiff = (pictures()[name].sha256 for name in ("jpeg", "png", "gif", "tiff"))
    url, other, third = TRUSTED_URLS[:3]
    first = [
        Candidate(url, "no bytes here yet"),
        Candidate(f"{url}#x", "", image_sha256=png),  # is dropped, and has the image
        Candidate(url, "later bytes count nothing", image_sha256=jpeg),
        Candidate(None, "known by its bytes", image_sha256=gif),
        Candidate("x.jpg", "known by its bytes", image_sha256=gif),
        Candidate("", "known by its other bytes", image_sha256=jpeg),
        Candidate(" ", "known by nothing at all"),
    ]
    second = [
        Candidate(url, "one more of the first"),
        Candidate(other, "in the archive alone"),
        Candidate(third, "in no file at all"),
    ]
    third_part = [
        Candidate(other, "after the archive", image_sha256=tiff),
        Candidate("#", "known by its bytes", image_sha256=gif),
    ]
    parts = [
        Part("a", "images.parquet", first),
        Part("b", "jsonl", second),
        Part("c", "warc.gz", [], [(other, "webp"), (other, "bmp"), (url, "avif")]),
        Part("d", "tar", third_part),
    ]
    curation = check(tmp_path, parts, Settings(words_at_least=1, **IMAGE_LIMITS))
    assert {outcome.identity for outcome in curation.kept} == {url, other, gif, jpeg}
    assert placed(parts)[1][url].name == "png"
    assert placed(parts)[1][other].name == "webp"


def test_a_url_is_one_of_http_where_a_whatwg_parser_says_so(tmp_path: Path):
    urls = [
        "\x01http://c1.example/1.png",
        "\x1fhttp://c1.example/1.png\x7f",
        "ht\ttp://c1.example/1.png",
        "http://c1.example/1.png\x01",
    ]
    check(
        tmp_path,
        [Part("a", "parquet", [Candidate(url, "a dog and a cat") for url in urls])],
        Settings(),
        "--until",
        "judge",
    )


def test_a_pool_that_leaves_nothing_is_counted_as_in_the_reference(tmp_path: Path):
    rows = [Candidate("x", "a dog and a cat")]
    check(tmp_path, [Part("a", "images.parquet", rows), Part("b", "csv", rows)], Settings())


# Real captions and pages ----------------------------------------------------------------------------------------------


@needs_shared
def test_real_captions_are_judged_as_in_the_reference(tmp_path: Path):
    """A sample of 2 million image texts of 230 languages, chosen by content: all texts of one image in 128."""
    with duckdb.connect(config={"threads": 1}) as sql:
        query = "select image, text, source from read_parquet(?) where md5(image) < '02' order by md5(text || image)"
        found = sql.execute(query, [str(SHARED / "alt_text.parquet")]).fetchall()
    rows = [
        Candidate(f"https://x.example/{quote(image)}" if n % 40 else image, text, page_url=source)
        for n, (image, text, source) in enumerate(found)
    ]
    parts = [Part("a", "parquet", rows[: len(rows) // 2]), Part("b", "jsonl.zst", rows[len(rows) // 2 :])]
    curation = check(
        tmp_path,
        parts,
        Settings(vocabulary_size=6_000, images_per_text_at_most=3, texts_per_image_at_most=10),
        "--until",
        "judge",
    )
    every = {(stage, reason) for stage, reason in EVERY_REASON_OF_AN_ARCHIVE if stage == "judge"}
    assert len(rows) > 10_000
    assert {found for found in reasons_of(curation) if found[0] == "judge"} == every - {("judge", "text_empty")}


@pytest.mark.everyday
@pytest.mark.parametrize(
    "settings", [Settings(), Settings(words_at_least=1, vocabulary_size=300)], ids=["as shipped", "no n-gram seen once"]
)
def test_both_handbooks_end_as_in_the_reference(tmp_path: Path, settings: Settings):
    candidates, images = handbooks()
    curation = run(candidates, {identity: picture.facts for identity, picture in images.items()}, settings)
    at = curate(tmp_path, HANDBOOKS, settings)
    half = sum("/en-US/" in candidate.image_url for candidate in candidates if candidate.image_url)
    assert_judged(
        at, curation, [Part("handbook", "warc.gz", candidates[:half]), Part("handbook", "warc.gz", candidates[half:])]
    )
    assert_finished(at, curation, images)
    facts = tables(candidates, settings)
    assert_tables(at, facts, settings)
    assert_text_measures(at, facts, curation)
    assert_failed(at, curation)
    assert_image_measures(at, curation, {identity: picture.facts for identity, picture in images.items()})
    assert (facts.vocabulary is None) == (settings.vocabulary_size > len(facts.ngrams))
    assert len(candidates) == 694
    assert len(curation.kept) > 20
