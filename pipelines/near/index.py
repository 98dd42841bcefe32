"""What decontamination searches with: test images, what the run's own images teach, and the index of test images.

Test images go the way of the pool's: the same decoder, the same size, the same embedder. The index is written once and
mapped into the memory of every worker; the pool is never shuffled.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.dedup import clusters, copies, embed
from altalign.dedup.clusters import NEAREST, nearest_clusters
from altalign.dedup.near_duplicates import TestSide
from altalign.errors import UnreadableError
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.machine import interrupts
from altalign.machine.threads import in_shared_threads
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.read import test_sets
from altalign.pipelines.read.stretches import batch
from altalign.pipelines.run import image_bytes, outputs, pool
from altalign.pipelines.run import image_tables as tables
from altalign.pipelines.run.units import WORK_VERSION, Run, Unit, content, digest
from altalign.settings.curate import CurateConfig
from altalign.storage import arrays
from altalign.storage.ranges import Range

# images that a map is learned from: the design was measured with so many
TRAINING_IMAGES = 340
TRAINING_IMAGES_AT_LEAST = 32  # ours; of fewer, a map would be fitted to their accidents
TRAINING_SHORT_SIDE_PX = 128

Vectors = npt.NDArray[np.int16]  # int16[n, d]


def is_searched(run: Run) -> bool:
    """Whether near-duplicates are looked for at all."""
    return bool(run.config.decontaminate.test_sets) or run.config.dedup.within_pool != "off"


def only_if(is_wanted: Callable[[Run], bool]) -> Callable[[Run], list[Unit]]:
    """The plan of a step that has one unit, or none."""
    return lambda run: [Unit(name=tables.ONLY)] if is_wanted(run) else []


def parts_of_tests(config: CurateConfig) -> list[test_sets.Part]:
    """All parts of all test sets, in the order of the settings."""
    return [part for test_set in config.decontaminate.named_sets for part in test_sets.parts(test_set)]


def plan_tests(run: Run) -> list[tables.TestUnit]:
    """One unit for each part that is not read yet.

    Parts that were read from other files, or with other settings, are forgotten. The others stay: when a test set is
    added, only that one is read.
    """
    hooks, units = measuring.hooks_of(run.config), list[tables.TestUnit]()
    files = [content(path) for path in run.config.decontaminate.embedder_files]
    size = [hooks.colour, hooks.short_side_px]
    settings = [WORK_VERSION, hooks.embedder.name, files, *size, run.config.decontaminate.mirrored]
    for number, part in enumerate(parts_of_tests(run.config)):
        rests_on = [*test_sets.stamps([part]), part._asdict(), settings]
        units.append(tables.TestUnit(name=f"{number:05d}", part=part._asdict(), digest=digest(rests_on)))
    digests = {unit["name"]: unit["digest"] for unit in units}
    gone = [
        name
        for name, facts in run.all_facts(tables.TESTS)
        if facts.digest != digests.get(name) or not storage.exists(tables.TEST_IMAGES.path(run, name))
    ]
    run.marks(tables.TESTS.step).drop(gone)
    return [unit for unit in units if run.facts(tables.TESTS, unit["name"]) is None]


def read_tests(run: Run, unit: tables.TestUnit) -> tables.TestFacts:
    """Embed the test images of a unit."""
    part = test_sets.Part(**unit["part"])
    images = embedded_tests(run.config, part)
    tables.TEST_IMAGES.write(run, images, unit["name"])
    return tables.TestFacts(unit["digest"], part.test_set, len(images), images["features"].null_count)


def embedded_tests(config: CurateConfig, part: test_sets.Part) -> pa.Table:
    """The test images of a part, of schema `TEST_IMAGE`.

    Raises:
        UnreadableError: one of them cannot be read.
    """
    hooks, rows = measuring.hooks_of(config), []
    for name, data in test_sets.images(part):
        interrupts.check()
        decoded = measuring.decoded(data, name=name, config=config.image, hooks=hooks)
        if decoded.pixels is None:
            size = f"{decoded.width} x {decoded.height} pixels, more than [image] pixels_at_most"
            damage = decoded.damage or (size if decoded.width else "no known image format")
            raise UnreadableError(
                f"{name}: an image of test set {part.test_set} cannot be decoded ({damage}); "
                "repair it or take it out of the set: copies of what cannot be read would not be found"
            )
        features: list[bytes | None] = [None, None]
        for view, image in enumerate([decoded.pixels, decoded.pixels[:, ::-1]][: 1 + config.decontaminate.mirrored]):
            if (of_view := hooks.embedder.features(image)) is not None:
                features[view] = of_view.tobytes()
        rows.append((part.test_set, name, hashlib.sha256(data).hexdigest(), *features))
    return pa.Table.from_batches([batch(rows, tables.TEST_IMAGE)])


def table_of_tests(run: Run) -> pa.Table:
    """All test images, of schema `TEST_IMAGE`, in the order of the settings."""
    units = [tables.TEST_IMAGES.read(run, name) for name in run.finished(tables.TESTS.step)]
    return pa.concat_tables([tables.TEST_IMAGE.empty_table(), *(unit.cast(tables.TEST_IMAGE) for unit in units)])


def _features_of(run: Run, column: "pa.ChunkedArray[Any]") -> Vectors:
    """The features of a column, without its nulls."""
    values: list[Any] = column.drop_null().to_pylist()
    return np.frombuffer(b"".join(values), np.int16).reshape(-1, measuring.hooks_of(run.config).embedder.dimensions)


def _sample(run: Run) -> Iterator[tuple[str, int, Vectors]]:
    """Unit, number and features (int16[d]) of every image that is not flat.

    They come in the order of image_id, which is a hash: the first of them are a sample of all.
    """
    for name in run.finished(tables.FETCHED.step):
        features = tables.FEATURES.array(run, name)
        for number in np.flatnonzero(features.any(axis=1)).tolist():
            yield name, number, features[number]


def views(data: bytes) -> Vectors:
    """The coefficients of an image, then of its copies: int16[n, 192]; none where it does not decode."""
    original = pixels.decode(data, pixels_at_most=2**62, colour=True, short_side_px=TRAINING_SHORT_SIDE_PX).pixels
    if original is None:
        return np.empty((0, embed.COEFFICIENTS), np.int16)
    seen = [original, *(copy for _, copy in copies.copies_of(original))]
    return embed.dct_coefficients(np.stack([thumbnail(pixels.gray(view)) for view in seen]))[0]


def learn(run: Run, _: Unit) -> tables.LearnedFacts:
    """Learn the map and the clusters, or take those of a calibration; write them to `audit/near_duplicates/`."""
    settings, embedder, training = run.config.decontaminate, measuring.hooks_of(run.config).embedder, []
    if settings.calibration:
        calibration = calibration_files.named(settings.calibration, embedder)
    else:
        if embedder.is_mapped:
            training = [(name, number) for name, number, _ in islice(_sample(run), TRAINING_IMAGES)]
        mapped = learned_map(run, training) if embedder.is_mapped else None
        calibration = Calibration(settings.embedder, settings.similarity_above, mapped, centroids_of(run, mapped))
    facts = tables.LearnedFacts(len(calibration.centroids), len(training))
    calibration_files.save(outputs.near_duplicates(run), calibration, facts._asdict())
    return facts


def calibration_of(run: Run) -> Calibration:
    """The calibration that the run learned or was given."""
    return calibration_files.load(outputs.near_duplicates(run))


def centroids_of(run: Run, mapped: embed.Map | None) -> Vectors:
    """Centroids of a sample of the run's images, int16[clusters, d]; of test images where all of the run's are flat."""
    count = run.config.decontaminate.clusters
    own = [features for _, _, features in islice(_sample(run), clusters.SAMPLES_PER_CLUSTER * count)]
    features = np.stack(own) if own else _features_of(run, table_of_tests(run)["features"])
    vectors = mapped.embed(features) if mapped else features
    return clusters.train(vectors, count) if vectors.any() else np.eye(1, vectors.shape[1], dtype=np.int16)


def learned_map(run: Run, training: Sequence[tuple[str, int]]) -> embed.Map:
    """The map that images of the run teach, given by their units and numbers there."""
    places, files = list[Range](), set[int]()
    for name, of_unit in groupby(training, key=itemgetter(0)):
        images = tables.STORED_IMAGES.read(run, name).take([number for _, number in of_unit])
        places += image_bytes.places_as_found(run, name, images)
        files |= {*image_bytes.whole_files(run, images)}

    def of_image(place: Range) -> Vectors:
        interrupts.check()
        return views(image_bytes.read_one(place))

    with pool.reading(run, sorted(files)):
        return map_of(in_shared_threads(of_image, places, run.config.engine.threads))


def map_of(of_images: Sequence[Vectors]) -> embed.Map:
    """The map that images teach, each with its copies as `views` gives them.

    Where there are too few of them, it is one that takes the lowest frequencies as they are.
    """
    of_images = [each for each in of_images if len(each)]
    if len(of_images) < TRAINING_IMAGES_AT_LEAST:
        unchanged = np.eye(embed.DIMENSIONS, embed.COEFFICIENTS, dtype=np.int32)
        return embed.Map(np.zeros(embed.COEFFICIENTS, np.int32), unchanged)
    originals, changed = np.stack([each[0] for each in of_images]), np.concatenate([each[1:] for each in of_images])
    copy_of = np.repeat(np.arange(len(of_images)), [len(each) - 1 for each in of_images])
    return embed.learn_map(originals, changed, copy_of)


def build_index(run: Run, _: Unit) -> tables.IndexFacts:
    """Write the index of test images: vectors of their views, their clusters, and digests of their bytes."""
    calibration, table = calibration_of(run), table_of_tests(run)
    both = [table[name] for name in ("features", "mirrored")]
    # of every view of a test image that is not flat
    numbers = [np.flatnonzero(view.combine_chunks().is_valid().to_numpy(zero_copy_only=False)) for view in both]
    vectors = calibration.vectors(np.concatenate([_features_of(run, view) for view in both]))
    digests = sorted(zip(table["sha256"].to_pylist(), range(len(table)), strict=True))
    written = {
        **TestSide.build(vectors, above=calibration.similarity_above).arrays(),
        "clusters": nearest_clusters(vectors, calibration.centroids, NEAREST),
        "test_of": np.concatenate(numbers).astype(np.int32),
        "digests": np.array(digests, dtype=[("sha256", "S64"), ("test", "<i4")]),
    }
    for name, array in written.items():
        tables.INDEX_ARRAYS.save(run, array, name)
    tables.TEST_NAMES.write(run, table)
    return tables.IndexFacts(len(table), table["features"].null_count)


@dataclass(frozen=True, eq=False)
class Index:
    """What the pool is searched for, mapped into memory; one in a process."""

    calibration: Calibration
    side: TestSide  # a vector a view of a test image
    clusters: npt.NDArray[np.int32]  # int32[views, k], the nearest clusters of each
    test_of: npt.NDArray[np.int32]  # int32[views], the number of its test image
    digests: npt.NDArray[np.void]  # SHA-256 (hex) of every test image and its number, sorted


def index_of(run: Run) -> Index:
    """The index of a run."""
    folder = storage.absolute(run.work(tables.INDEX.step))
    of_calibration = storage.absolute(outputs.near_duplicates(run))
    return _index(folder, of_calibration, storage.stamp(run.mark(tables.INDEX.step, tables.ONLY)))


@lru_cache(maxsize=1)
def _index(folder: str, of_calibration: str, _changed: storage.Stamp) -> Index:
    names = ("vectors", "norms", "rotation", "strips", "second", "clusters", "test_of", "digests")
    *side, nearest, test_of, digests = (arrays.mapped(storage.join(folder, f"{name}.npy")) for name in names)
    return Index(calibration_files.load(of_calibration), TestSide(*side), nearest, test_of, digests)
