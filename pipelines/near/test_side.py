"""The side that the pool is searched for: test images embedded once, what the run's own images teach, and the index of both.

Test images go the way of the pool's: the same decoder, the same size, the same embedder. The index is written once and
mapped into the memory of every worker; the pool is never shuffled.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.dedup import clusters, copies, embed
from altalign.dedup.buckets import nearest_clusters
from altalign.dedup.near_duplicates import TestSide
from altalign.errors import UnreadableError
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.machine import interrupts
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.files.digests import content, digest
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.read import test_sets
from altalign.pipelines.read.found import batch
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts import (
    INDEX,
    LESSON,
    LESSONS,
    ONLY,
    TEST_IMAGE,
    TEST_NAME,
    TESTS,
    Fetched,
    IndexFacts,
    LearnedFacts,
    Lesson,
    LessonFacts,
    LessonUnit,
    TestFacts,
    TestPart,
    TestUnit,
    test_names,
)
from altalign.pipelines.run.units import WORK_VERSION, Marks, Run, Unit

LESSON_IMAGES, LESSONS_PER_UNIT = 340, 20  # images that a map is learned from: the design was measured with so many
LESSONS_AT_LEAST = 32  # ours; of fewer, a map would be fitted to their accidents
LESSON_SHORT_SIDE_PX = 128

D = TypeVar("D", TestUnit, LessonUnit)

# Test images ----------------------------------------------------------------------------------------------------------


def parts(run: Run) -> list[test_sets.Part]:
    """All parts of all test sets, in the order of the settings."""
    return [part for test_set in run.config.decontaminate.named_sets for part in test_sets.parts(test_set)]


def plan(run: Run) -> list[TestUnit]:
    """One unit a part that is not read yet.

    What was made of other files, or in another way, is forgotten. The rest outlives the stages: with a test set more,
    only that one is read.
    """
    hooks, units = measuring.hooks_of(run.config), list[TestUnit]()
    files = [content(path) for path in run.config.decontaminate.embedder_files]
    way = [
        WORK_VERSION,
        hooks.embedder.name,
        files,
        hooks.colour,
        hooks.short_side_px,
        run.config.decontaminate.mirrored,
    ]
    for number, part in enumerate(parts(run)):
        rests_on = [*test_sets.stamps([part]), part.to_json(), way]
        units.append(TestUnit(name=f"{number:05d}", part=part.to_json(), digest=digest(rests_on)))
    return _not_there(run, TESTS, units)


def read_tests(run: Run, unit: TestUnit) -> TestFacts:
    """Embed the test images of a unit.

    Raises:
        UnreadableError: one of them cannot be read.
    """
    part = test_sets.Part.from_json(unit["part"])
    hooks, rows = measuring.hooks_of(run.config), []
    for name, data in test_sets.images(part):
        interrupts.check()
        decoded = _decoded(run, hooks, part.test_set, name, data)
        features = hooks.embedder.features(decoded)
        seen_in_a_mirror = hooks.embedder.features(decoded[:, ::-1]) if run.config.decontaminate.mirrored else None
        sha256 = hashlib.sha256(data).hexdigest()
        rows.append(
            (
                part.test_set,
                name,
                sha256,
                *(None if each is None else each.tobytes() for each in (features, seen_in_a_mirror)),
            )
        )
    table = pa.Table.from_batches([batch(rows, TEST_IMAGE)])
    parquet.write(TestPart(run, unit["name"]).images, table, TEST_IMAGE)
    return TestFacts(unit["digest"], part.test_set, len(rows), table["features"].null_count)


def _decoded(run: Run, hooks: measuring.Hooks, test_set: str, name: str, data: bytes) -> np.ndarray:
    decoded = measuring.decoded(data, name=name, config=run.config.image, hooks=hooks)
    if decoded.pixels is None:
        large = (
            f"{decoded.width} x {decoded.height} pixels, more than [image] pixels_at_most"
            if decoded.width
            else "no known image format"
        )
        raise UnreadableError(
            f"{name}: an image of test set {test_set} cannot be decoded ({decoded.damage or large}); "
            "repair it or take it out of the set: copies of what cannot be read would not be found"
        )
    return decoded.pixels


def tests(run: Run) -> pa.Table:
    """All test images, in order, of `TEST_IMAGE`."""
    units = [parquet.read_table(TestPart(run, name).images) for name in run.finished(TESTS.step)]
    return pa.concat_tables([TEST_IMAGE.empty_table(), *(unit.cast(TEST_IMAGE) for unit in units)])


# Images of the run ----------------------------------------------------------------------------------------------------


def sample(run: Run) -> Iterator[tuple[str, int, np.ndarray]]:
    """Unit, number and features of the run's images that are not flat, in the order of image_id, which is a hash: the first of them are a sample of all."""
    for name in run.finished(Fetched.step):
        features = Fetched(run, name).features()
        for number in np.flatnonzero(features.any(axis=1)).tolist():
            yield name, number, features[number]


# What is learned ------------------------------------------------------------------------------------------------------


def is_wanted(run: Run) -> bool:
    """Whether near-duplicates are looked for at all."""
    return bool(run.config.decontaminate.test_sets) or run.config.dedup.within_pool != "off"


def plan_lessons(run: Run) -> list[LessonUnit]:
    """Units of images whose copies a map is learned from, that are not made yet; none where there is no map, or a calibration brings it."""
    if (
        not is_wanted(run)
        or run.config.decontaminate.calibration
        or not measuring.hooks_of(run.config).embedder.is_mapped
    ):
        return []
    chosen = [(name, number) for name, number, _ in islice(sample(run), LESSON_IMAGES)]
    rows = {name: Fetched(run, name).kept_images().to_pylist() for name in dict.fromkeys(name for name, _ in chosen)}
    units = list[LessonUnit]()
    for begin in range(0, len(chosen), LESSONS_PER_UNIT):
        some = [(name, rows[name][number]) for name, number in chosen[begin : begin + LESSONS_PER_UNIT]]
        places = [(name, row["blob_offset"], row["blob_bytes"]) for name, row in some]
        rests_on = digest([WORK_VERSION, [row["found_sha256"] for _, row in some]])
        units.append(LessonUnit(name=f"{begin // LESSONS_PER_UNIT:05d}", images=places, digest=rests_on))
    return _not_there(run, LESSONS, units)


def _not_there(run: Run, marks: Marks[TestFacts] | Marks[LessonFacts], units: list[D]) -> list[D]:
    """Those of the units that are not finished. Marks of others, or of what has changed since, are deleted."""
    digests = {unit["name"]: unit["digest"] for unit in units}
    for name, facts in run.all_facts(marks):
        if facts.digest != digests.get(name) or not storage.exists(run.work(marks.step, f"{name}.parquet")):
            storage.delete(run.mark(marks.step, name))
    return [unit for unit in units if run.facts(marks, unit["name"]) is None]


def make_copies(run: Run, unit: LessonUnit) -> LessonFacts:
    """Coefficients of images and of their copies."""
    made: list[tuple[bytes, int | None]] = []
    for number, (name, offset, size) in enumerate(unit["images"]):
        interrupts.check()
        made += _lesson(Fetched(run, name).image(offset, size), number)
    parquet.write(Lesson(run, unit["name"]).rows, pa.Table.from_batches([batch(made, LESSON)]), LESSON)
    return LessonFacts(unit["digest"], len(unit["images"]))


def _lesson(data: bytes, number: int) -> Iterator[tuple[bytes, int | None]]:
    original = pixels.decode(data, pixels_at_most=2**62, colour=True, short_side_px=LESSON_SHORT_SIDE_PX).pixels
    if original is None:
        return
    views = [original, *(copy for _, copy in copies.copies_of(original))]
    coefficients, _ = embed.dct_coefficients(np.stack([thumbnail(pixels.gray(view)) for view in views]))
    for of_view, each in enumerate(coefficients):
        yield each.tobytes(), number if of_view else None


def plan_learned(run: Run) -> list[Unit]:
    """One unit, where there is anything to look for."""
    return [Unit(name=ONLY)] if is_wanted(run) else []


def learn(run: Run, _: Unit) -> LearnedFacts:
    """Learn the map and find the clusters, or take those of a calibration, and write them to `audit/near_duplicates/`."""
    named = run.config.decontaminate.calibration
    calibration = calibration_files.named(named, measuring.hooks_of(run.config).embedder) if named else _learned(run)
    lessons = sum(facts.images for _, facts in run.all_facts(LESSONS)) if calibration.map and not named else 0
    facts = LearnedFacts(len(calibration.centroids), lessons)
    calibration_files.save(outputs.near_duplicates(run), calibration, facts.to_json())
    return facts


def calibration_of(run: Run) -> Calibration:
    """What was learned."""
    return calibration_files.load(outputs.near_duplicates(run))


def _learned(run: Run) -> Calibration:
    """A calibration of the run's own: the threshold of the settings, and what its images teach."""
    settings, embedder = run.config.decontaminate, measuring.hooks_of(run.config).embedder
    mapped = learned_map(run) if embedder.is_mapped else None
    return Calibration(settings.embedder, settings.similarity_above, mapped, centroids_of(run, mapped))


def centroids_of(run: Run, mapped: embed.Map | None) -> np.ndarray:
    """Clusters of a sample of the run's own images (where none teaches anything: of test images), int16[clusters, d]."""
    settings, embedder = run.config.decontaminate, measuring.hooks_of(run.config).embedder
    own = [features for _, _, features in islice(sample(run), clusters.SAMPLES_PER_CLUSTER * settings.clusters)]
    features = np.stack(own) if own else _rows(tests(run)["features"].drop_null())
    vectors = mapped.embed(features) if mapped and len(features) else features
    has_direction = bool(len(vectors)) and bool(vectors.any())
    dimensions = mapped.dimensions if mapped else embedder.dimensions
    return clusters.train(vectors, settings.clusters) if has_direction else np.eye(1, dimensions, dtype=np.int16)


def learned_map(run: Run) -> embed.Map:
    """The map that the run's own images teach; where there are too few of them, one that looks at the lowest frequencies as they are."""
    originals, changed, copy_of = [], [], []
    for name in run.finished(LESSONS.step):
        table = parquet.read_table(Lesson(run, name).rows)
        rows, of = _rows(table["features"]), table["copy_of"].combine_chunks()
        is_original = of.is_null().to_numpy(zero_copy_only=False)
        copy_of.append(np.cumsum(is_original)[~is_original] - 1 + sum(map(len, originals)))
        originals.append(rows[is_original])
        changed.append(rows[~is_original])
    if sum(map(len, originals)) < LESSONS_AT_LEAST:
        return embed.Map(
            np.zeros(embed.COEFFICIENTS, np.int32), np.eye(embed.DIMENSIONS, embed.COEFFICIENTS, dtype=np.int32)
        )
    return embed.learn_map(np.concatenate(originals), np.concatenate(changed), np.concatenate(copy_of))


def _rows(column: "pa.ChunkedArray[Any]") -> np.ndarray:
    """int16[n, d] of a column of features, none of them null."""
    values: list[Any] = column.to_pylist()
    return np.frombuffer(b"".join(values), np.int16).reshape(len(values), -1) if values else np.zeros((0, 1), np.int16)


# The index ------------------------------------------------------------------------------------------------------------


def plan_index(run: Run) -> list[Unit]:
    """One unit, where there is anything to look for."""
    return [Unit(name=ONLY)] if run.config.decontaminate.test_sets else []


def build(run: Run, _: Unit) -> IndexFacts:
    """Embed the test side and write what is searched."""
    calibration, table = calibration_of(run), tests(run)
    of_test, vectors = _test_vectors(table, calibration, measuring.hooks_of(run.config).embedder.dimensions)
    side = TestSide.build(vectors, above=calibration.similarity_above)
    written = {
        **side.arrays(),
        "clusters": nearest_clusters(vectors, calibration.centroids, run.config.decontaminate.nearest_clusters),
        "test_of": of_test,
        "digests": np.array(
            sorted(zip(table["sha256"].to_pylist(), range(len(table)), strict=True)),
            dtype=[("sha256", "S64"), ("test", "<i4")],
        ),
    }
    for name, array in written.items():
        arrays.save(run.work(INDEX.step, f"{name}.npy"), array)
    parquet.write(test_names(run), table.select(TEST_NAME.names), TEST_NAME)
    return IndexFacts(len(table), table["features"].null_count)


def _test_vectors(table: pa.Table, calibration: Calibration, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each view of a test image that is not flat: the number of the image, and its vector."""
    numbers, views = [], []
    for name in ("features", "mirrored"):
        has = table[name].is_valid().combine_chunks().to_numpy(zero_copy_only=False)
        numbers.append(np.flatnonzero(has))
        views.append(_rows(table[name].drop_null()) if has.any() else np.zeros((0, dimensions), np.int16))
    return np.concatenate(numbers).astype(np.int32), calibration.vectors(np.concatenate(views))


def names(run: Run) -> pa.Table:
    """Test set and name of every test image, of `TEST_NAME`."""
    return parquet.read_table(test_names(run))


@dataclass(frozen=True, eq=False)
class Index:
    """What the pool is searched for, mapped into memory; one in a process.

    Attributes:
        calibration: what makes vectors, and which cosine is a near-duplicate's.
        side: a vector a view of a test image.
        clusters: int32[views, k], the nearest clusters of each.
        test_of: int32[views], the number of its test image.
        digests: SHA-256 (hex) of every test image and its number, sorted.
    """

    calibration: Calibration
    side: TestSide
    clusters: np.ndarray
    test_of: np.ndarray
    digests: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Index":
        """The index of a run."""
        folder = storage.absolute(run.work(INDEX.step))
        return _index(
            folder,
            storage.absolute(outputs.near_duplicates(run)),
            storage.stamp(storage.join(folder, f"{ONLY}.json")),
        )


@lru_cache(maxsize=1)
def _index(folder: str, of_calibration: str, _changed: storage.Stamp) -> Index:
    def mapped(name: str) -> np.ndarray:
        return arrays.mapped(storage.join(folder, f"{name}.npy"))

    side = TestSide(*(mapped(name) for name in ("vectors", "norms", "rotation", "strips", "second")))
    return Index(calibration_files.load(of_calibration), side, mapped("clusters"), mapped("test_of"), mapped("digests"))
