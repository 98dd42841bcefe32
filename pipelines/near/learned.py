"""What the run's own images teach: the map of the embedder, and the clusters that vectors are sorted into."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.dedup import clusters, copies, embed
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.machine import interrupts
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import test_images
from altalign.pipelines.near.test_images import features_of
from altalign.pipelines.read.stretches import batch
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import (
    AUGMENTED,
    AUGMENTED_IMAGES,
    AUGMENTED_ROW,
    FEATURES,
    FETCHED,
    ONLY,
    AugmentedFacts,
    AugmentedUnit,
    LearnedFacts,
    image_bytes,
    kept_images,
)
from altalign.pipelines.run.units import WORK_VERSION, Run, Unit, digest

TRAINING_IMAGES, TRAINING_IMAGES_PER_UNIT = (
    340,
    20,
)  # images that a map is learned from: the design was measured with so many
TRAINING_IMAGES_AT_LEAST = 32  # ours; of fewer, a map would be fitted to their accidents
TRAINING_SHORT_SIDE_PX = 128


def is_wanted(run: Run) -> bool:
    """Whether near-duplicates are looked for at all."""
    return bool(run.config.decontaminate.test_sets) or run.config.dedup.within_pool != "off"


def sample(run: Run) -> Iterator[tuple[str, int, npt.NDArray[np.int16]]]:
    """Unit, number and features (int16[d]) of every image that is not flat.

    They come in the order of image_id, which is a hash: the first of them are a sample of all.
    """
    for name in run.finished(FETCHED.step):
        features = FEATURES.array(run, name)
        for number in np.flatnonzero(features.any(axis=1)).tolist():
            yield name, number, features[number]


def plan_copies(run: Run) -> list[AugmentedUnit]:
    """The units that copy images for the map to learn from, and are not finished.

    There are none where the embedder has no map, or a calibration brings it.
    """
    is_learned = measuring.hooks_of(run.config).embedder.is_mapped and not run.config.decontaminate.calibration
    if not (is_wanted(run) and is_learned):
        return []
    chosen = [(name, number) for name, number, _ in islice(sample(run), TRAINING_IMAGES)]
    rows = {name: kept_images(run, name).to_pylist() for name in dict.fromkeys(name for name, _ in chosen)}
    units = list[AugmentedUnit]()
    for begin in range(0, len(chosen), TRAINING_IMAGES_PER_UNIT):
        some = [(name, rows[name][number]) for name, number in chosen[begin : begin + TRAINING_IMAGES_PER_UNIT]]
        places = [(name, row["blob_offset"], row["blob_bytes"]) for name, row in some]
        rests_on = digest([WORK_VERSION, [row["found_sha256"] for _, row in some]])
        units.append(AugmentedUnit(name=f"{begin // TRAINING_IMAGES_PER_UNIT:05d}", images=places, digest=rests_on))
    return test_images.not_there(run, AUGMENTED, units)


def make_copies(run: Run, unit: AugmentedUnit) -> AugmentedFacts:
    """Write the coefficients of images and of their copies."""
    made: list[tuple[bytes, int | None]] = []
    for number, (name, offset, size) in enumerate(unit["images"]):
        interrupts.check()
        of_image = enumerate(views(image_bytes(run, name, offset, size)))
        made += ((each.tobytes(), number if of_view else None) for of_view, each in of_image)
    AUGMENTED_IMAGES.write(run, pa.Table.from_batches([batch(made, AUGMENTED_ROW)]), unit["name"])
    return AugmentedFacts(unit["digest"], len(unit["images"]))


def views(data: bytes) -> npt.NDArray[np.int16]:
    """The coefficients of an image, then of its copies: int16[n, 192]; none where it does not decode."""
    original = pixels.decode(data, pixels_at_most=2**62, colour=True, short_side_px=TRAINING_SHORT_SIDE_PX).pixels
    if original is None:
        return np.empty((0, embed.COEFFICIENTS), np.int16)
    seen = [original, *(copy for _, copy in copies.copies_of(original))]
    return embed.dct_coefficients(np.stack([thumbnail(pixels.gray(view)) for view in seen]))[0]


def plan(run: Run) -> list[Unit]:
    """One unit where near-duplicates are looked for, or none."""
    return [Unit(name=ONLY)] if is_wanted(run) else []


def learn(run: Run, _: Unit) -> LearnedFacts:
    """Learn the map and the clusters, or take those of a calibration; write them to `audit/near_duplicates/`."""
    named = run.config.decontaminate.calibration
    calibration = calibration_files.named(named, measuring.hooks_of(run.config).embedder) if named else _learned(run)
    training_images = sum(facts.images for _, facts in run.all_facts(AUGMENTED)) if calibration.map and not named else 0
    facts = LearnedFacts(len(calibration.centroids), training_images)
    calibration_files.save(outputs.near_duplicates(run), calibration, facts.to_json())
    return facts


def calibration_of(run: Run) -> Calibration:
    """The calibration that the run learned or was given."""
    return calibration_files.load(outputs.near_duplicates(run))


def _learned(run: Run) -> Calibration:
    """The run's own calibration: the threshold of the settings, and what its images teach."""
    settings, embedder = run.config.decontaminate, measuring.hooks_of(run.config).embedder
    mapped = learned_map(run) if embedder.is_mapped else None
    return Calibration(settings.embedder, settings.similarity_above, mapped, centroids_of(run, mapped))


def centroids_of(run: Run, mapped: embed.Map | None) -> npt.NDArray[np.int16]:
    """Centroids of a sample of the run's images, int16[clusters, d]; of test images where all of the run's are flat."""
    settings, embedder = run.config.decontaminate, measuring.hooks_of(run.config).embedder
    own = [features for _, _, features in islice(sample(run), clusters.SAMPLES_PER_CLUSTER * settings.clusters)]
    features = np.stack(own) if own else features_of(test_images.table(run)["features"].drop_null())
    vectors = mapped.embed(features) if mapped and len(features) else features
    has_direction = bool(len(vectors)) and bool(vectors.any())
    dimensions = mapped.dimensions if mapped else embedder.dimensions
    return clusters.train(vectors, settings.clusters) if has_direction else np.eye(1, dimensions, dtype=np.int16)


def learned_map(run: Run) -> embed.Map:
    """The map that the run's own images teach."""
    of_images: list[npt.NDArray[np.int16]] = []
    for name in run.finished(AUGMENTED.step):
        table = AUGMENTED_IMAGES.read(run, name)
        is_original = table["copy_of"].combine_chunks().is_null().to_numpy(zero_copy_only=False)
        of_images += np.split(features_of(table["features"]), np.flatnonzero(is_original)[1:])
    return map_of(of_images)


def map_of(of_images: Sequence[npt.NDArray[np.int16]]) -> embed.Map:
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
