"""`altalign calibrate RUN OUT`: measures the search on a run's own images and chooses a threshold within a budget.

A map is learned from copies of half of a sample; the other half says how many copies of each kind are found. Images of
the pool, which are in the run's `work/`, are searched for lower cosines than any threshold, which says how often
unrelated images are taken for one another. Nothing of the run is changed.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data.stages import STAGES, own_files
from altalign.dedup import copies, embed
from altalign.dedup import thresholds as measures
from altalign.dedup.buckets import IN_A_BUCKET, NEAREST
from altalign.dedup.thresholds import SEARCHED_ABOVE, Buckets, Comparisons, Line
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import calibration_report, comparing, gallery, index
from altalign.pipelines.near.calibration_report import Findings, Looked
from altalign.pipelines.near.comparing import Pool, PoolImage, Search, Tests
from altalign.pipelines.run.image_tables import FEATURES, FETCHED, image_range, kept_images
from altalign.pipelines.run.units import WORK_VERSION, Run
from altalign.settings.common import flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, stderr

POOL = 20_000  # images of the pool that are searched for
SAMPLE_AT_LEAST = 2 * index.TRAINING_IMAGES_AT_LEAST
COPIES_OF_PX = 256  # short side that copies are made of, at least
MIRRORED = "mirrored"  # a copy that no map is shown: the view of that name finds it, or nothing does
TRANSFORMS = (*copies.TRANSFORMS, MIRRORED)
LOOKED_AT = 50


@dataclass(frozen=True)
class CalibrationRequest:
    """What `altalign calibrate` is asked for."""

    out: str  # the folder that is written
    pairs: str  # a file of labelled pairs, or empty
    images: str  # a file of their images, or empty
    false_positives: float  # allowed per pool image
    sample: int  # how many images are sampled


def calibrate(
    config: CurateConfig, request: CalibrationRequest, write_page: Callable[[Findings, str], None]
) -> Findings:
    """Calibrate on a run, and write the calibration; `write_page` writes the page of findings to a path."""
    run, out = Run(config.run.folder, config, ()), request.out
    files = [*calibration_files.files_of(out), storage.join(out, calibration_report.PAGE)]
    with own_files(run.folder):
        _check_run(run)
        _check_request(request)
        _check_out(run, out, files)
    with storage.locked(run.folder), own_files(run.folder):
        findings = _measure(run, request)
        for path in files:
            storage.delete(path)
        storage.sweep(out)
        write_page(findings, files[-1])
        calibration_files.save(out, findings.calibration, findings.facts())  # its JSON last
    return findings


def _check_run(run: Run) -> None:
    """Refuse, before any work, a run whose images are not there, or were made with other settings or versions."""
    if not run.is_done("fetch"):
        raise UsageError(
            f"{run.folder}: its images are not fetched yet; `altalign curate` with --until fetch does that, then "
            "calibrate"
        )
    before = dict(flatten(CurateConfig.load(run.path("config.toml")).model_dump(mode="json")))
    for name, value in flatten(run.config.model_dump(mode="json")):
        stage = stage_of(CurateConfig, name)
        if stage in STAGES[: STAGES.index("decontaminate")] and before.get(name) != value:
            raise UsageError(
                f"--set {name}: {run.folder} was made with {before.get(name)!r}, and its stage {stage} rests on that; "
                "curate a run with the other"
            )
    measuring.hooks_of(run.config)
    stages = storage.read_json(run.path("run.json")).get("stages", {})
    extract, fetch = (stages.get(stage, {}).get("reads", {}) for stage in ("extract", "fetch"))
    repair = "`altalign curate` with --rerun makes its images anew"
    if extract.get("work_version") != WORK_VERSION:
        raise UsageError(
            f"{run.folder}: its work/ is of version {extract.get('work_version')}, this is altalign of version "
            f"{WORK_VERSION} of it; {repair}"
        )
    for path in run.config.decontaminate.embedder_files:
        if fetch.get(f"file {path}") != hashlib.sha256(storage.read_bytes(path)).hexdigest():
            raise UsageError(
                f"{path}: another file now than the one that the images of {run.folder} were described with; {repair}"
            )
    if not run.config.decontaminate.test_sets:
        raise UsageError(
            f"{run.folder}: no test sets, and a threshold depends on how many test images there are; give --test-set "
            "NAME=PATH"
        )
    index.parts_of_tests(run.config)


def _check_request(request: CalibrationRequest) -> None:
    if not 0 < request.false_positives < inf:
        raise UsageError(
            f"--false-positives {request.false_positives:g}: not a number above 0; give how many a pool image may "
            "have, such as 1e-3"
        )
    if not SAMPLE_AT_LEAST <= request.sample <= POOL:
        raise UsageError(
            f"--sample {request.sample}: too {'few' if request.sample < SAMPLE_AT_LEAST else 'many'}; give "
            f"{SAMPLE_AT_LEAST} to {POOL:,} images"
        )
    if bool(request.pairs) != bool(request.images):
        raise UsageError("--pairs and --images belong together: the pairs, and the images that they name")
    if request.pairs:
        comparing.check_labelled(request.pairs, request.images)


def _check_out(run: Run, out: str, files: list[str]) -> None:
    storage.check(out)
    if storage.is_inside(out, run.folder):
        raise UsageError(
            f"{out}: in the run's own folder {run.folder}, whose files `altalign curate` makes anew; choose another "
            "folder"
        )
    if storage.kind(out) not in ("folder", "missing"):
        raise UsageError(f"{out}: a file, where the folder of a calibration is meant; choose another")
    entries = {name.partition(".partial-")[0] for name in storage.entries(out)}
    if calibration_files.FILE not in entries and entries - {storage.name(path) for path in files}:
        raise UsageError(
            f"{out}: a folder that is no calibration (it has no {calibration_files.FILE}); choose another, or empty it"
        )


def _measure(run: Run, request: CalibrationRequest) -> Findings:
    """All that is measured, in order."""
    settings, threads = run.config.decontaminate, run.config.engine.threads
    views = 1 + settings.mirrored
    tests, pool = _tests(run), _pool(run)
    sample = pool.distinct[: request.sample]
    _check_size(run.folder, len(sample), len(pool.places), len(tests.numbers))
    training, measured = sample[: len(sample) // 2], sample[len(sample) // 2 :]
    with stderr().status(f"copies of {many(len(sample), 'image')} are made"):
        made = in_threads(partial(_features_of_copies, run), [pool.places[i] for i in sample], threads)
    of_training, of_measured = np.split(np.stack(made), [len(training)])
    mapped = None
    if measuring.hooks_of(run.config).embedder.is_mapped:
        shown = of_training[:, : len(copies.TRANSFORMS)]
        has_features = shown.any(axis=2)
        mapped = embed.learn_map(pool.features[training], shown[has_features], np.nonzero(has_features)[0])
    calibration = Calibration(settings.embedder, settings.similarity_above, mapped, index.centroids_of(run, mapped))

    search, pairs, decoys, true_pairs, lines = _compared(run, calibration, pool, tests)
    comparisons, budget = len(tests.numbers) * views, request.false_positives
    try:
        above = measures.smallest_threshold(lines, comparisons=comparisons, budget=budget)
    except ValueError as error:
        raise UsageError(f"--false-positives {request.false_positives:g}: {error}") from error
    calibration = replace(calibration, similarity_above=above)

    # cosines of copies with their originals, by original, then by transform
    buckets = Buckets(calibration.centroids, NEAREST, IN_A_BUCKET if settings.require_bucket else 0)
    count, transforms, dimensions = of_measured.shape
    of_copies = calibration.vectors_or_zeros(of_measured.reshape(-1, dimensions))
    of_mirrors = of_copies.reshape(count, transforms, -1)[:, TRANSFORMS.index(MIRRORED)]
    seen = [calibration.vectors(pool.features[measured]), of_mirrors][:views]
    inside, anyhow = measures.of_best_view(of_copies, [np.repeat(view, transforms, axis=0) for view in seen], buckets)
    labelled = None
    if request.pairs:
        labelled = comparing.measure_labelled(request.pairs, request.images, run.config, calibration, buckets)
    counts = {
        "training_images": len(training) if calibration.map else 0,
        "copied": len(measured),
        "pool_images": len(pool.places),
        "flat_pool_images": pool.flat,
        "repeated_images": int(sample[-1]) + 1 - len(sample),
        "test_sets": dict(Counter(name for name, _ in tests.names)),
        "flat_test_images": len(tests.names) - len(tests.numbers),
        "views": views,
        "false_positives_at_most": request.false_positives,
        "above_without_bucket": int(((anyhow > above) & ~(inside > above)).sum()),
        "taken_for_copies": true_pairs,
    }
    looked_at = _looked_at(run, search, pool, tests, pairs, above)
    return Findings(calibration, counts, list(TRANSFORMS) * count, inside, pairs, decoys, lines, labelled, looked_at)


def _compared(
    run: Run, calibration: Calibration, pool: Pool, tests: Tests
) -> tuple[Search, Comparisons, Comparisons, int, list[Line]]:
    """The pool against test images, and against decoys; near-duplicates among them; the lines of false positives.

    Decoys are mirrored test images, but for those that are like their own mirror. Where there are too few of them, the
    second line is missing.
    """
    threads, similar = run.config.engine.threads, run.config.decontaminate.similarity_above
    vectors, sha256 = calibration.vectors(pool.features), np.array([place.sha256 for place in pool.places], "S64")
    plain, mirrored = calibration.vectors(tests.features), calibration.vectors(tests.mirrored)
    is_decoy = ~(measures.cosines_of(plain, mirrored) > similar)
    search = Search(vectors, sha256, plain, tests.sha256, threads)
    pairs = search.counted()
    decoys = Search(vectors, sha256, mirrored[is_decoy], tests.sha256[is_decoy], threads).counted()
    strict = round(max(similar, SEARCHED_ABOVE), 4)
    true_pairs = measures.true_near_duplicates(pairs, decoys, similarity_above=strict)
    try:
        lines = [measures.fit(pairs.without(true_pairs))]
    except ValueError as error:
        raise AltalignError(f"{run.folder}: {error} (a larger run, or more test images)") from error
    with suppress(ValueError):
        lines.append(measures.fit(decoys))
    return search, pairs, decoys, true_pairs, lines


def _check_size(folder: str, sample: int, images: int, test_images: int) -> None:
    """Refuse, before copies are made, too few images to learn from and to compare."""
    if sample < SAMPLE_AT_LEAST:
        raise UsageError(
            f"{folder}: {sample} distinct images that are not flat; {SAMPLE_AT_LEAST} are needed to learn from and to "
            "measure on"
        )
    if (comparisons := images * test_images) < measures.COMPARISONS_AT_LEAST:
        raise AltalignError(
            f"{folder}: {many(images, 'image')} and {many(test_images, 'test image')} make "
            f"{many(comparisons, 'comparison')}, too few to fit a rate of false positives; compare a million or more "
            "(a larger run, or more test images)"
        )


# Images ---------------------------------------------------------------------------------------------------------------


def _pool(run: Run) -> Pool:
    """The first images of the run that are not flat."""
    places: list[PoolImage] = []
    rows: list[np.ndarray] = []
    flat = 0
    for name in run.finished(FETCHED.step):
        interrupts.check()
        if len(places) == POOL:
            break
        features = FEATURES.array(run, name)
        numbers = np.flatnonzero(features.any(axis=1))[: POOL - len(places)]
        is_last = len(places) + len(numbers) == POOL
        flat += (int(numbers[-1]) + 1 if is_last and len(numbers) else len(features)) - len(numbers)
        for row in kept_images(run, name).take(numbers).to_pylist():
            places.append(PoolImage(row["key"], name, row["blob_offset"], row["blob_bytes"], row["found_sha256"]))
        rows.append(features[numbers])
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    return Pool(places, np.concatenate([np.zeros((0, dimensions), np.int16), *rows]), flat)


def _tests(run: Run) -> Tests:
    """All test images, with mirrored views, which are decoys."""
    config = run.config.model_copy(
        update={"decontaminate": run.config.decontaminate.model_copy(update={"mirrored": True})}
    )
    with stderr().status("test images are read"):
        parts = in_threads(partial(index.embedded_tests, config), index.parts_of_tests(config), config.engine.threads)
    table = pa.concat_tables(parts)
    columns: list[list[Any]] = [table[name].to_pylist() for name in ("features", "mirrored")]
    numbers = np.array([i for i, both in enumerate(zip(*columns, strict=True)) if None not in both], np.int64)
    if not len(numbers):
        raise UsageError(
            f"{many(len(table), 'test image')}, and none that is not flat: nothing can be near them; give other "
            "test sets"
        )
    features, mirrored = (np.stack([np.frombuffer(column[i], np.int16) for i in numbers]) for column in columns)
    names: Any = zip(table["test_set"].to_pylist(), table["test_image"].to_pylist(), strict=True)
    sha256 = np.array(table["sha256"].to_pylist(), "S64")[numbers]
    return Tests(list(names), list(map(len, parts)), numbers, sha256, features, mirrored)


def _bytes(run: Run, place: PoolImage) -> bytes:
    path, offset, *_ = image_range(run, place.unit, place.offset, place.bytes)
    data = storage.read_range(path, offset, place.bytes)
    if hashlib.sha256(data).hexdigest() != place.sha256:
        raise UnreadableError(f"{path}: the image at byte {offset:,} is not the one that was fetched")
    return data


def _features_of_copies(run: Run, place: PoolImage) -> np.ndarray:
    """Features of the copies of an image, int16[transforms, d]; zeros for one that is flat."""
    embedder, data, most = measuring.hooks_of(run.config).embedder, _bytes(run, place), run.config.image.pixels_at_most
    short_side_px = max(COPIES_OF_PX, embedder.short_side_px)
    with measuring.enough_memory(place.key, data, colour=True, pixels_at_most=most, short_side_px=short_side_px):
        original = pixels.decode(data, pixels_at_most=most, colour=True, short_side_px=short_side_px).pixels
    assert original is not None  # it was decoded when it was fetched, and its bytes are the same
    made = np.zeros((len(TRANSFORMS), embedder.dimensions), np.int16)
    for row, view in enumerate((*(copy for _, copy in copies.copies_of(original)), original[:, ::-1])):
        interrupts.check()
        features = embedder.features(view if embedder.colour else pixels.gray(view))
        if features is not None:
            made[row] = features
    return made


# Pairs to look at -----------------------------------------------------------------------------------------------------


def _looked_at(
    run: Run, search: Search, pool: Pool, tests: Tests, counted: Comparisons, threshold: float
) -> list[Looked]:
    """The pairs nearest to the threshold, the greatest cosine first, with thumbnails."""
    enough = np.flatnonzero(counted.counts >= counted.above(threshold).hits + LOOKED_AT // 2)
    above = float(measures.THRESHOLDS[enough[-1] if len(enough) else 0])
    pairs = search.around(threshold, above=min(above, threshold), pairs=LOOKED_AT)
    numbers = tests.numbers[pairs.tests].tolist()
    of_tests = gallery.test_thumbnails(run.config, tests.sizes, set(numbers))
    result = list[Looked]()
    for cosine, row, number in reversed(list(zip(pairs.cosines.tolist(), pairs.rows.tolist(), numbers, strict=True))):
        interrupts.check()
        place, (test_set, test_image) = pool.places[row], tests.names[number]
        of_pool = gallery.thumbnail(_bytes(run, place))
        result.append(Looked(cosine, place.key, test_set, test_image, of_pool, of_tests[number]))
    return result
