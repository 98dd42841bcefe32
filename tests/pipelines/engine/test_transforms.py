"""Each transform of the pipeline on real runners, over a tiny pool, against plain loops over its input."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from apache_beam import Create, Pipeline, PTransform
from apache_beam.testing.util import assert_that, equal_to

from altalign import storage
from altalign.data.key import image_id, sample_key
from altalign.data.reasons import Stage
from altalign.pipelines.curate import PIPELINE
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.engine.options import options
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.image_tables import GATHERED, GATHERED_IMAGES, GATHERED_INDEX
from altalign.pipelines.run.text_tables import EXTRACTED, GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.stages import extract, fetch, group_survivors, judge, tables
from altalign.settings.curate import CurateConfig
from tests.support.curations import write_input


class Pair(NamedTuple):
    """A candidate, as a plain loop over the input finds it."""

    file: int
    row: int
    identity: str | None
    caption: str
    page: str | None
    image: bytes | None

    @property
    def ngrams(self) -> list[str]:
        words = self.caption.split()
        return words + [f"{a} {b}" for a, b in pairwise(words)]


def ran(run: Run, step: str, transform: PTransform[Any, Any], units: list[Unit], expected: list[Any]) -> None:
    """Run a transform over units; its output has to be this, in whatever order."""
    storage.delete(run.path("log", "trouble.json"))
    given = options(run.config.engine, [])
    with started(run, given), Pipeline(options=given) as pipeline:
        assert_that(pipeline | Create(units) | step >> transform, equal_to(expected))


def contents(run: Run, step: str) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of every file of a step."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for folder in (Path(run.work(step)), Path(run.work(step, "marks")))
        for path in folder.iterdir()
        if path.is_file()
    }


# The pool and what a plain loop makes of it ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["embedded", pytest.param("prism", marks=pytest.mark.engine)])
def new_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("pool")
    text = write_input(folder, rows=240).read_text(encoding="utf-8")
    for old in ("input/*.parquet", "text/*.csv"):
        text = text.replace(f'"{old}"', f"'{folder / old}'")
    path = folder / "absolute.toml"
    path.write_text(text, encoding="utf-8")
    of_engine = {"embedded": ["engine.workers=2"], "prism": ["engine.runner=prism"]}[request.param]
    other = [f"run.folder='{folder / 'run'}'", "text.vocabulary_size=90", "decontaminate.test_sets=[]", *of_engine]
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "prism":
            patched.setenv("ALTALIGN_PRISM", request.getfixturevalue("prism"))
        yield find_run(CurateConfig.load(path, other), config_path=str(path))


def read(run: Run) -> Iterator[Pair]:
    for file in run.files:
        table = pq.read_table(file.path) if file.path.endswith(".parquet") else pyarrow.csv.read_csv(file.path)
        for row, values in enumerate(table.to_pylist()):
            image = values.get("image")
            identity = values["url"] or (hashlib.sha256(image).hexdigest() if image else None)
            yield Pair(file.number, row, identity, values["caption"] or "", values.get("page"), image)


@pytest.fixture(scope="module")
def pairs(new_run: Run) -> list[Pair]:
    return list(read(new_run))


class Counted(NamedTuple):
    """What the rules of a text need to know of the pool."""

    ngrams: Counter[str]
    threshold: int
    images: dict[str, set[str]]
    texts: dict[str, set[str]]


@pytest.fixture(scope="module")
def plain(new_run: Run, pairs: list[Pair]) -> Counted:
    ngrams = Counter(ngram for pair in pairs for ngram in pair.ngrams)
    images, texts = defaultdict(set), defaultdict(set)
    for pair in pairs:
        if pair.identity is not None:
            images[pair.caption].add(pair.identity)
            texts[pair.identity].add(pair.caption)
    return Counted(ngrams, sorted(ngrams.values())[-new_run.config.text.vocabulary_size], images, texts)


def passes(pair: Pair, plain: Counted, config: CurateConfig) -> bool:
    return (
        pair.identity is not None
        and config.text.words_at_least <= len(pair.caption.split()) <= config.text.words_at_most
        and len(plain.images[pair.caption]) <= config.text.images_per_text_at_most
        and all(plain.ngrams[ngram] >= plain.threshold for ngram in pair.ngrams)
        and len(plain.texts[pair.identity]) <= config.image.texts_per_image_at_most
    )


# Every transform once, over what the one before it left ---------------------------------------------------------------


@pytest.fixture(scope="module")
def extracted(new_run: Run) -> Run:
    ran(
        new_run,
        "extract",
        MapUnits(new_run, EXTRACTED, extract.extract),
        extract.plan(new_run),
        ["000000", "000001", "000002"],
    )
    extract.conclude(new_run)
    return new_run


@pytest.fixture(scope="module")
def counted(extracted: Run) -> Run:
    ran(
        extracted,
        "tables",
        tables.Count(extracted),
        pool.units(extracted),
        list(range(tables.buckets_of(extracted).partitions)),
    )
    tables.conclude(extracted)
    return extracted


@pytest.fixture(scope="module")
def judged(counted: Run) -> Run:
    ran(
        counted,
        "judge",
        judge.Judge(counted),
        pool.units(counted),
        list(range(group_survivors.buckets_of(counted).partitions)),
    )
    judge.conclude(counted)
    return counted


@pytest.fixture(scope="module")
def gathered(judged: Run) -> Run:
    ran(
        judged,
        "gather",
        fetch.GatherTables(judged),
        fetch.plan_gather(judged),
        [0, 1],
    )
    return judged


def never(run: Run, unit: Unit) -> Never:
    raise AssertionError(f"{unit['name']} was finished")


# Tests ---------------------------------------------------------------------------------------------------------------


def test_map_units_does_every_unit_and_leaves_its_mark(extracted: Run, pairs: list[Pair]) -> None:
    assert extracted.finished("extract") == ["000000", "000001", "000002"]
    of_file = Counter(pair.file for pair in pairs)
    assert [sum(facts.row_groups) for _, facts in extracted.all_facts(EXTRACTED)] == [
        of_file[0],
        of_file[1],
        of_file[2],
    ]
    assert outputs.counts_of(extracted).kept(Stage.EXTRACT) == pool.rows(extracted) == len(pairs)


def test_map_units_does_no_finished_unit_again(extracted: Run) -> None:
    ran(
        extracted,
        "again",
        MapUnits(extracted, EXTRACTED, never),
        extract.plan(extracted),
        ["000000", "000001", "000002"],
    )


def test_count_counts_as_a_plain_loop(counted: Run, pairs: list[Pair], plain: Counted) -> None:
    histograms = storage.read_json(counted.path("audit", "histograms.json"))
    assert set(histograms) == {"words", "images_per_text", "texts_per_image", "ngram_count"}
    vocabulary = storage.read_json(counted.path("tables", "vocabulary.json"))
    assert vocabulary["all"] is False
    assert (vocabulary["threshold"], vocabulary["distinct"]) == (plain.threshold, len(plain.ngrams))
    assert vocabulary["rows"] == sum(n >= plain.threshold for n in plain.ngrams.values())
    for name, sets, limit in (
        ("over_shared_texts", plain.images, counted.config.text.images_per_text_at_most),
        ("over_captioned_images", plain.texts, counted.config.image.texts_per_image_at_most),
    ):
        above = sorted(len(keys) for keys in sets.values() if len(keys) > limit)
        assert sorted(np.load(counted.path("tables", f"{name}_counts.npy")).tolist()) == above
        hashes = np.load(counted.path("tables", f"{name}.npy"))
        assert (hashes[1:] > hashes[:-1]).all()
    assert len(np.load(counted.path("tables", "over_shared_texts.npy"))) > 0


def test_judge_keeps_the_pairs_of_a_plain_loop_once_each_in_order(
    judged: Run, pairs: list[Pair], plain: Counted
) -> None:
    passed = [pair for pair in pairs if passes(pair, plain, judged.config)]
    firsts: dict[tuple[str, str], Pair] = {}
    for pair in sorted(passed, key=lambda p: (p.page is not None, p.page or "", p.file, p.row)):
        firsts.setdefault((image_id(pair.identity or ""), sample_key(pair.identity or "", pair.caption)), pair)
    kept = [firsts[ids] for ids in sorted(firsts)]
    assert 0 < len(kept) < len(passed) < len(pairs)
    table = pa.concat_tables(GROUPED_SURVIVORS.read(judged, name) for name in judged.finished(GROUPED.step))
    images = [(row["image_id"].hex(), row["key"].hex(), row["file"], row["row"]) for row in table.to_pylist()]
    assert images == [(*ids, pair.file, pair.row) for ids, pair in zip(sorted(firsts), kept, strict=True)]
    counts = outputs.counts_of(judged)
    counts.reconcile([Stage.EXTRACT, Stage.JUDGE], pairs=len(kept))
    assert counts.dropped(Stage.JUDGE)["pair_repeated"] == len(passed) - len(kept)


def test_gather_copies_the_first_image_in_hand_of_every_survivor(
    gathered: Run, pairs: list[Pair], plain: Counted
) -> None:
    passing = {pair.identity for pair in pairs if passes(pair, plain, gathered.config)}
    places: dict[str | None, Pair] = {}
    for pair in pairs:
        if pair.image and pair.identity in passing:
            places.setdefault(pair.identity, pair)
    assert len(places) > 5
    for file in (0, 1):
        name = f"{file:06d}"
        blob, index = storage.read_bytes(GATHERED_IMAGES.path(gathered, name)), GATHERED_INDEX.array(gathered, name)
        images = [(row, blob[offset : offset + length]) for row, offset, length in index.tolist()]
        assert images == sorted((pair.row, pair.image) for pair in places.values() if pair.file == file)
        assert gathered.facts_of(GATHERED, name).images == len(images)


@pytest.mark.parametrize(
    ("step", "merged", "lost"),
    [("tables/units", "tables/merged", "00003"), ("judge/units", "judge/grouped", "00002")],
)
@pytest.mark.parametrize("shuffle", ["files", "beam"])
def test_a_step_that_was_cut_does_only_what_is_missing_and_merges_to_the_same_bytes(
    gathered: Run, step: str, merged: str, lost: str, shuffle: str
) -> None:
    settings = gathered.config.model_copy(
        update={"engine": gathered.config.engine.model_copy(update={"shuffle": shuffle})}
    )
    run = Run(gathered.folder, settings, gathered.files)
    (transform,) = [each.transform for steps, _ in PIPELINE.values() for each in steps if each.marks.step == step]
    before = {name: contents(run, name) for name in (step, merged)}
    unit = pool.units(run)[1]["name"]
    storage.delete(run.mark(step, unit))
    storage.delete(run.mark(merged, lost))
    ran(run, "again", transform(run), pool.units(run), [int(name) for name in run.finished(merged)] + [int(lost)])
    after = {name: contents(run, name) for name in (step, merged)}
    for name, redone in ((step, unit), (merged, lost)):
        if name == merged:  # a spill file also shows what its thread had met before; what is merged of it does not
            assert {file: data for file, (data, _) in after[name].items()} == {
                file: data for file, (data, _) in before[name].items()
            }
        changed = {file for file in after[name] if after[name][file][1] != before[name][file][1]}
        assert f"{redone}.json" in changed
        assert all(file.startswith(redone) for file in changed)
