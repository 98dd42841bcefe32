"""What stages write for the audit beside their work: strings of what the tables know by hash, and samples; held against
plain loops over the whole.
"""

import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.data.reasons import CURATED, KEPT, Stage
from altalign.filters import thumbnails
from altalign.filters.identity import image_hash
from altalign.filters.one_caption import folded, hash_of_bigram, hash_of_word
from altalign.pipelines.figures import image_figures, text_figures
from tests.end_to_end.inputs import Part, placed, write_parts
from tests.end_to_end.oracle import curate, read_dropped, read_sidecars
from tests.end_to_end.test_tables_against_duckdb import repeated_words
from tests.filters.plain_words import hash_of_text
from tests.reference.curation import Settings, tables
from tests.support.curations import Finished

pytestmark = pytest.mark.runs


def rows_of(run: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(run / "audit" / f"{name}.parquet").to_pylist()


def hash_of(ngram: str) -> int:
    return hash_of_bigram(*ngram.split(" ")) if " " in ngram else hash_of_word(ngram)


def test_frequent_things_and_the_vocabularys_edge_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("altalign.pipelines.run.pool.ROWS_PER_UNIT", 500)
    monkeypatch.setattr("altalign.pipelines.stages.tables.ROWS_PER_PARTITION", 100)
    settings = Settings(vocabulary_size=500, images_per_text_at_most=3, texts_per_image_at_most=10)
    rows = repeated_words(4_000, seed=5)
    parts = [Part("a", "parquet", rows[:3_000]), Part("b", "jsonl", rows[3_000:])]
    run, pool = curate(tmp_path, write_parts(tmp_path, parts), settings, "--until", "judge"), placed(parts)[0]
    expected = tables(pool, settings)
    threshold = expected.threshold or 0
    assert threshold > 2  # so that there is something on both sides

    first_text: dict[str, str] = {}
    first_image: dict[str, str] = {}
    for candidate in pool:
        first_text.setdefault(folded(candidate.caption), candidate.caption)
        if candidate.identity is not None and candidate.image_url is not None:
            first_image.setdefault(candidate.identity, candidate.identity)
    texts = sorted(expected.over_shared_texts.items(), key=lambda entry: (-entry[1], hash_of_text(entry[0])))[
        : text_figures.MOST
    ]
    images = sorted(expected.over_captioned_images.items(), key=lambda entry: (-entry[1], image_hash_of(entry[0])))[
        : text_figures.MOST
    ]
    named = [("text", first_text[text], n) for text, n in texts] + [
        ("image", first_image[image], n) for image, n in images
    ]
    assert (len(texts), len(images) > 0) == (text_figures.MOST, True)
    assert [(row["kind"], row["value"], row["count"]) for row in rows_of(run, "frequent")] == named

    counts = {ngram: n for ngram, n in expected.ngrams.items() if n >= 2}
    inside = sorted(
        (ngram for ngram, n in counts.items() if n >= threshold), key=lambda ngram: (counts[ngram], hash_of(ngram))
    )
    outside = sorted(
        (ngram for ngram, n in counts.items() if n < threshold), key=lambda ngram: (-counts[ngram], hash_of(ngram))
    )
    edges = [
        (ngram, counts[ngram], side is inside) for side in (inside, outside) for ngram in side[: text_figures.PER_SIDE]
    ]
    assert [(row["ngram"], row["count"], row["is_in"]) for row in rows_of(run, "edge_ngrams")] == edges


def image_hash_of(image: str) -> int:
    return int(image_hash(pa.array([image], pa.string()))[0])


def test_samples_are_the_pairs_or_images_of_the_smallest_hashes_once(embedded: Finished) -> None:
    run = embedded.folder / "run"
    found = rows_of(run, "samples")
    expected: list[tuple[str, str, str]] = []
    for stage in Stage:
        by_reason: dict[str, list[str]] = {}
        seen_before: set[tuple[str, str]] = set()
        is_by_key = stage in (Stage.EXTRACT, Stage.JUDGE)
        for row in sorted(
            read_dropped(run, stage),
            key=lambda row: ("" if is_by_key and row["reason"] != "pair_repeated" else row["image_id"], row["key"]),
        ):
            of_one = row["reason"], row["key" if is_by_key else "image_id"]
            if of_one in seen_before:
                continue
            seen_before.add(of_one)
            by_reason.setdefault(row["reason"], []).append(row["key"])
        expected += [
            (stage.value, reason, key) for reason, keys in by_reason.items() for key in keys[: text_figures.PER_REASON]
        ]
    first_of_image = list({row["image_id"]: row["key"] for row in reversed(read_sidecars(run))}.values())[::-1]
    expected += [(KEPT, KEPT, key) for key in first_of_image[: image_figures.OF_KEPT]]
    assert Counter((row["stage"], row["reason"], row["key"]) for row in found) == Counter(expected)

    with_picture = Counter(row["reason"] for row in found if row["picture"])
    assert with_picture[KEPT] == Counter(row["reason"] for row in found)[KEPT] > 0
    assert with_picture["image_too_small"] == Counter(row["reason"] for row in found)["image_too_small"] > 0
    assert with_picture["near_duplicate_of_test_image"] > 0
    assert with_picture["not_in_archive"] == 0
    for row in found:
        if row["picture"]:
            with Image.open(io.BytesIO(row["picture"])) as image:
                assert (image.format, max(image.size) <= thumbnails.WEBP_SIDE_PX) == ("WEBP", True)


@pytest.mark.everyday
def test_hosts_and_scripts_add_up(embedded: Finished) -> None:
    run = embedded.folder / "run"
    hosts, scripts = rows_of(run, "hosts"), rows_of(run, "scripts")
    dropped = {row["image_id"] for stage in (Stage.IMAGE, Stage.DECONTAMINATE) for row in read_dropped(run, stage)}
    missing = {row["image_id"] for row in read_dropped(run, Stage.FETCH)}
    kept = {row["image_id"] for row in read_sidecars(run)}
    near = {row["image_id"] for row in read_dropped(run, Stage.DECONTAMINATE)}
    assert sum(row["images"] for row in hosts) == len(dropped | missing | kept)
    assert sum(row["fetched"] for row in hosts) == len(dropped | kept)
    assert sum(row["kept"] for row in hosts) == len(kept | near)
    assert {row["host"] for row in hosts} == {"", "img.example"}
    judged = Counter(row["reason"] for row in read_dropped(run, Stage.JUDGE))
    for reason, rows in judged.items():
        if reason != "pair_repeated":
            assert sum(row["rows"] for row in scripts if row["verdict"] == reason) == rows
    assert {row["script"] for row in scripts} == {"Latin", "none"}


Sized = dict[str, int]  # bytes as found by image_id


def images_of_steps(folder: Path, sources: set[str]) -> dict[str, Sized]:
    """By plain loops, the images of rows of these sources after each stage from judge on: from what stages dropped and
    the shards have.
    """
    run, sizes = folder / "run", {}
    for path in (run / "work" / "fetch" / "units").glob("*.parquet"):
        sizes |= {row["image_id"]: row["found_bytes"] for row in pq.read_table(path).to_pylist()}
    later: Sized = {row["image_id"]: sizes[row["image_id"]] for row in read_sidecars(run) if row["source"] in sources}
    found = {"decontaminate": dict(later)}
    in_hand = found_bytes(folder)
    for stage, before in ((Stage.DECONTAMINATE, "image"), (Stage.IMAGE, "fetch"), (Stage.FETCH, "judge")):
        for row in read_dropped(run, stage):
            if row["source"] in sources:
                later[row["image_id"]] = (
                    0 if stage is Stage.FETCH else sizes.get(row["image_id"]) or in_hand[row["image_id"]]
                )
        found[before] = dict(later)
    return found


def found_bytes(folder: Path) -> Sized:
    """Of each image in hand the bytes that are first in the pool."""
    found: Sized = {}
    for path in sorted((folder / "input").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["image"] is not None:
                identity = row["url"] or hashlib.sha256(row["image"]).hexdigest()
                found.setdefault(hashlib.blake2b(identity.encode(), digest_size=16).hexdigest(), len(row["image"]))
    return found


def bytes_in_tars(run: Path, sources: set[str]) -> int:
    """Of the members of samples of these sources, headers and padding included."""
    of_key = {row["key"]: row["source"] for row in read_sidecars(run)}
    total = 0
    for path in (run / "shards").glob("*.tar"):
        with tarfile.open(path) as tar:
            total += sum(
                512 + -(-member.size // 512) * 512 for member in tar if of_key[member.name.partition(".")[0]] in sources
            )
    return total


@pytest.mark.everyday
def test_images_and_bytes_of_every_step_are_those_of_all_sources_and_of_each(embedded: Finished) -> None:
    folder, both = embedded.folder, ("pictures", "words")
    run, told = (
        folder / "run",
        {(row["step"], row["source"]): (row["images"], row["bytes"]) for row in rows_of(folder / "run", "funnel")},
    )
    pool = {
        "pictures": [path.stat().st_size for path in (folder / "input").iterdir()],
        "words": [(folder / "text" / "some.csv").stat().st_size],
    }
    every: dict[str, set[str]] = {source: set() for source in both}
    for path in sorted((folder / "input").glob("*.parquet")):
        every["pictures"] |= {
            row["url"] or hashlib.sha256(row["image"]).hexdigest()
            for row in pq.read_table(path).to_pylist()
            if row["url"] or row["image"]
        }
    every["words"] = {
        line.partition(",")[0] for line in (folder / "text" / "some.csv").read_text(encoding="utf-8").splitlines()[1:]
    }
    for source in (None, *both):
        wanted = {source} if source else set(both)
        steps = images_of_steps(folder, wanted)
        assert told["pool", source] == (None, sum(sum(pool[each]) for each in wanted))
        assert told["extract", source] == (len(set().union(*(every[each] for each in wanted))), None)
        assert told["judge", source] == (len(steps["judge"]), None)
        for step in ("fetch", "image", "decontaminate"):
            assert told[step, source] == (len(steps[step]), sum(steps[step].values()))
        ends = 0 if source else 1024 * len(list((run / "shards").glob("*.tar")))
        assert told["shards", source] == (len(steps["decontaminate"]), bytes_in_tars(run, wanted) + ends)
    assert list(told) == [(step, source) for step in ("pool", *CURATED, "shards") for source in (None, *both)]
    for step in ("extract", "judge", "decontaminate"):  # some are of both
        assert (told[step, None][0] or 0) < sum(told[step, source][0] or 0 for source in both)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (
        told["shards", None]
        == (summary["images"], summary["bytes"])
        == (told["decontaminate", None][0], sum(p.stat().st_size for p in (run / "shards").glob("*.tar")))
    )


def test_a_run_says_on_what_it_was_made(embedded: Finished) -> None:
    facts = json.loads((embedded.folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"\w+ \w+, \d+ cores(, \d+ GB)?, Python 3\.\d+\.\d+", facts["machine"])
    assert facts["machine"] in (embedded.folder / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.everyday
def test_dropped_images_are_those_of_the_dropped_rows(embedded: Finished) -> None:
    run = embedded.folder / "run"
    found: dict[tuple[str, str], set[str]] = {}
    for stage in (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE):
        for row in read_dropped(run, stage):
            found.setdefault((stage.value, row["reason"]), set()).add(row["image_id"])
    told = {(row["stage"], row["reason"]): row["images"] for row in rows_of(run, "dropped_images")}
    assert told == {name: len(images) for name, images in found.items()}
    assert len(told) > 2
