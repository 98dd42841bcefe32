"""`altalign calibrate RUN OUT`: measures the search on a run's own images and chooses a threshold within a budget.

A map is learned from copies of half of a sample; the other half says how many copies of each kind are found. Images of
the pool, which are in the run's `work/`, are searched for lower cosines than any threshold, which says how often
unrelated images are taken for one another. Nothing of the run is changed.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data.stages import STAGES, own_files
from altalign.dedup import copies, embed
from altalign.dedup import thresholds as measures
from altalign.dedup.clusters import IN_A_BUCKET
from altalign.dedup.thresholds import SEARCHED_ABOVE, Comparisons, Line, Share, short
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import calibration_report, comparing, gallery, index
from altalign.pipelines.near.calibration_report import Findings, Looked
from altalign.pipelines.near.comparing import Search
from altalign.pipelines.run.image_tables import FEATURES, FETCHED, image_range, kept_images
from altalign.pipelines.run.units import WORK_VERSION, Run, content
from altalign.settings.common import flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, stderr

POOL = 20_000  # images of the pool that are searched for
SAMPLE_AT_LEAST = 2 * index.TRAINING_IMAGES_AT_LEAST
COPIES_OF_PX = 256  # short side that copies are made of, at least
MIRRORED = "mirrored"  # a copy that no map is shown: the view of that name finds it, or nothing does
TRANSFORMS = (*copies.TRANSFORMS, MIRRORED)
LOOKED_AT = 50
COVERED_FROM = 0.5  # recall; below it a kind of copies is called not covered

Image = dict[str, Any]  # key, unit, blob_offset, blob_bytes and found_sha256 of an image of the pool


class CalibrationRequest(NamedTuple):
    """What `altalign calibrate` is asked for."""

    out: str  # the folder that is written
    pairs: str  # a file of labelled pairs, or empty
    images: str  # a file of their images, or empty
    false_positives: float  # allowed per pool image
    sample: int  # how many images are sampled


class Tests(NamedTuple):
    """Test images."""

    names: list[tuple[str, str]]  # of all: test set, test image
    sizes: list[int]  # how many each part of a test set has
    numbers: np.ndarray  # of those that are not flat, int64[n]; the rest is of these
    sha256: np.ndarray  # of their bytes
    features: np.ndarray  # int16[n, d]
    mirrored: np.ndarray  # of their mirror images


def calibrate(
    config: CurateConfig, request: CalibrationRequest, write_page: Callable[[Findings, str], None]
) -> Findings:
    """Calibrate on a run, and write the calibration; `write_page` writes the page of findings to a path."""
    run, out = Run(config.run.folder, config, ()), request.out
    files = [*calibration_files.files_of(out), storage.join(out, calibration_report.PAGE)]
    with own_files(run.folder):
        _check_run(run)
        _check_request(run, request, files)
    with storage.locked(run.folder), own_files(run.folder):
        findings = _measure(run, request)
        for path in files:
            storage.delete(path)
        storage.sweep(out)
        write_page(findings, files[-1])
        calibration_files.save(out, findings.calibration, findings.facts)  # its JSON last
    return findings


def _check_run(run: Run) -> None:
    """Refuse, before any work, a run whose images are not there, or were made with other settings or versions."""
    if not run.is_done("fetch"):
        raise UsageError(
            f"{run.folder}: its images are not fetched yet; `altalign curate` with --until fetch does that, then "
            "calibrate"
        )
    measuring.hooks_of(run.config)  # refuses files that cannot be read
    settings, recorded = run.config.decontaminate, storage.read_json(run.path("run.json")).get("stages", {})
    now: list[tuple[str | None, str, object]] = [("extract", "work_version", WORK_VERSION)]
    now += [(stage_of(CurateConfig, name), name, value) for name, value in flatten(run.config.model_dump(mode="json"))]
    now += [("fetch", f"file {path}", content(path)) for path in settings.embedder_files]
    for stage, name, value in now:
        if stage in STAGES[: STAGES.index("decontaminate")]:
            before = recorded.get(stage, {}).get("reads", {}).get(name)
            if before != value:
                raise UsageError(
                    f"{run.folder}: its stage {stage} was made with another {name} ({before!r}, not {value!r}); "
                    "`altalign curate` with --rerun makes its images anew"
                )
    if not settings.test_sets:
        raise UsageError(
            f"{run.folder}: no test sets, and a threshold depends on how many test images there are; give --test-set "
            "NAME=PATH"
        )
    index.parts_of_tests(run.config)


def _check_request(run: Run, request: CalibrationRequest, files: Sequence[str]) -> None:
    """Refuse options that make no sense, and a folder to write that holds something else."""
    out = request.out
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
    embedder = measuring.hooks_of(run.config).embedder
    tests, (pool, features, flat) = _tests(run), _pool(run)
    # the first image with each sequence of bytes: none is both shown to the map and searched for
    sha256 = np.array([image["found_sha256"] for image in pool], "S64")
    sample = np.sort(np.unique(sha256, return_index=True)[1])[: request.sample]
    if len(sample) < SAMPLE_AT_LEAST:
        raise UsageError(
            f"{run.folder}: {len(sample)} distinct images that are not flat; {SAMPLE_AT_LEAST} are needed to learn "
            "from and to measure on"
        )
    if (comparisons := len(pool) * len(tests.numbers)) < measures.COMPARISONS_AT_LEAST:
        raise AltalignError(
            f"{run.folder}: {many(len(pool), 'image')} and {many(len(tests.numbers), 'test image')} make "
            f"{many(comparisons, 'comparison')}, too few to fit a rate of false positives; compare a million or more "
            "(a larger run, or more test images)"
        )
    training, measured = sample[: len(sample) // 2], sample[len(sample) // 2 :]
    with stderr().status(f"copies of {many(len(sample), 'image')} are made"):
        made = in_threads(partial(_features_of_copies, run), [pool[i] for i in sample], threads)
    of_training, of_measured = np.split(np.stack(made), [len(training)])
    mapped = None
    if embedder.is_mapped:
        learned_from = of_training[:, : len(copies.TRANSFORMS)]
        has_features = learned_from.any(axis=2)
        mapped = embed.learn_map(features[training], learned_from[has_features], np.nonzero(has_features)[0])
    similar, centroids = settings.similarity_above, index.centroids_of(run, mapped)
    calibration = Calibration(settings.embedder, similar, mapped, centroids)

    # The pool against test images, and against decoys: mirrored test images, but for those that are like their mirror.
    vectors, plain, mirrored = map(calibration.vectors, (features, tests.features, tests.mirrored))
    is_decoy = ~(measures.cosines_of(plain, mirrored) > similar)
    search = Search(vectors, sha256, plain, tests.sha256, threads)
    pairs = search.counted()
    decoys = Search(vectors, sha256, mirrored[is_decoy], tests.sha256[is_decoy], threads).counted()
    strict = round(max(similar, SEARCHED_ABOVE), 4)
    true_pairs = measures.true_near_duplicates(pairs, decoys, similarity_above=strict)
    views, budget = 1 + settings.mirrored, request.false_positives
    lines, above = _threshold(run, pairs.without(true_pairs), decoys, len(tests.numbers) * views, budget)
    calibration, bucket = replace(calibration, similarity_above=above), IN_A_BUCKET if settings.require_bucket else 0
    by_recall = _recall(calibration, vectors[measured], of_measured, views, bucket)
    rates = [float(line.rates(above)) for line in lines]  # what is expected is not below what decoys say
    labelled = None
    if request.pairs:
        labelled = comparing.measure_labelled(request.pairs, request.images, run.config, calibration, bucket)
    facts = {
        "clusters": len(centroids),
        "training_images": len(training) if mapped else 0,
        "copied": len(measured),
        "pool_images": len(pool),
        "flat_pool_images": flat,
        "test_sets": dict(Counter(name for name, _ in tests.names)),
        "flat_test_images": len(tests.names) - len(tests.numbers),
        "views": views,
        "false_positives_at_most": budget,
        "false_positives_expected": short(len(tests.numbers) * views * max(rates)),
        "is_extrapolated": rates[0] < lines[0].fitted_to,
        "taken_for_copies": true_pairs,
        "recall": {name: share.to_json() for name, share in by_recall},
        "not_covered": [name for name, share in by_recall if share.value < COVERED_FROM],
        "test_images_found": _of_rate(pairs, above, lines[0]),
        "decoys_found": _of_rate(decoys, above, lines[1] if len(lines) > 1 else None),
        "labelled_pairs": labelled,
    }
    return Findings(calibration, facts, _looked_at(run, search, pool, tests, pairs, above))


def _threshold(
    run: Run, unrelated: Comparisons, decoys: Comparisons, comparisons: int, budget: float
) -> tuple[list[Line], float]:
    """The lines through the rates of false positives, of the pool and of decoys, and the threshold that they give."""
    try:
        lines = [measures.fit(unrelated)]
    except ValueError as error:
        raise AltalignError(f"{run.folder}: {error} (a larger run, or more test images)") from error
    with suppress(ValueError):  # of too few decoys
        lines.append(measures.fit(decoys))
    try:
        return lines, measures.smallest_threshold(lines, comparisons=comparisons, budget=budget)
    except ValueError as error:
        raise UsageError(f"--false-positives {budget:g}: {error}") from error


def _recall(
    calibration: Calibration, originals: np.ndarray, features: np.ndarray, views: int, bucket: int
) -> list[tuple[str, Share]]:
    """The share of copies that is found, by transform, the worst first.

    `originals` are vectors int16[n, d]; `features` are those of their copies, int16[n, transforms, d].
    """
    of_copies = calibration.vectors_or_zeros(features.reshape(-1, features.shape[-1]))
    of_mirrors = of_copies.reshape(len(originals), len(TRANSFORMS), -1)[:, TRANSFORMS.index(MIRRORED)]
    of_views = [np.repeat(view, len(TRANSFORMS), axis=0) for view in (originals, of_mirrors)[:views]]
    cosines = measures.of_best_view(of_copies, of_views, calibration.centroids, at_least=bucket)
    above = calibration.similarity_above
    recall = measures.recall_by_transform([*TRANSFORMS] * len(originals), cosines, similarity_above=above)
    return sorted(recall.items(), key=lambda entry: entry[1].value)


def _of_rate(counted: Comparisons, above: float, line: Line | None) -> dict[str, object]:
    fitted = {name: short(value) for name, value in asdict(line).items()} if line else None
    return {"above": counted.above(above).hits, "comparisons": counted.compared, "line": fitted}


def _pool(run: Run) -> tuple[list[Image], np.ndarray, int]:
    """The first images of the run that are not flat, their features (int16[n, d]), and how many were passed over.

    They are those with the smallest image_id, which is a hash.
    """
    images, flat = list[Image](), 0
    rows = [np.zeros((0, measuring.hooks_of(run.config).embedder.dimensions), np.int16)]
    for name in run.finished(FETCHED.step):
        interrupts.check()
        if len(images) == POOL:
            break
        features = FEATURES.array(run, name)
        numbers = np.flatnonzero(features.any(axis=1))[: POOL - len(images)]
        is_last = len(numbers) and len(images) + len(numbers) == POOL
        flat += (int(numbers[-1]) + 1 if is_last else len(features)) - len(numbers)
        kept = kept_images(run, name).select(["key", "blob_offset", "blob_bytes", "found_sha256"]).take(numbers)
        images += [{"unit": name, **row} for row in kept.to_pylist()]
        rows.append(features[numbers])
    return images, np.concatenate(rows), flat


def _tests(run: Run) -> Tests:
    """All test images, with mirrored views, which are decoys."""
    settings = run.config.decontaminate.model_copy(update={"mirrored": True})
    config = run.config.model_copy(update={"decontaminate": settings})
    with stderr().status("test images are read"):
        parts = in_threads(partial(index.embedded_tests, config), index.parts_of_tests(config), config.engine.threads)
    rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
    numbers = [i for i, row in enumerate(rows) if row["features"] and row["mirrored"]]
    if not numbers:
        raise UsageError(
            f"{many(len(rows), 'test image')}, and none that is not flat: nothing can be near them; give other "
            "test sets"
        )
    return Tests(
        [(row["test_set"], row["test_image"]) for row in rows],
        list(map(len, parts)),
        np.array(numbers, np.int64),
        np.array([rows[i]["sha256"] for i in numbers], "S64"),
        *(np.stack([np.frombuffer(rows[i][name], np.int16) for i in numbers]) for name in ("features", "mirrored")),
    )


def _bytes(run: Run, image: Image) -> bytes:
    path, offset, *_ = image_range(run, image["unit"], image["blob_offset"], image["blob_bytes"])
    data = storage.read_range(path, offset, image["blob_bytes"])
    if hashlib.sha256(data).hexdigest() != image["found_sha256"]:
        raise UnreadableError(f"{path}: the image at byte {offset:,} is not the one that was fetched")
    return data


def _features_of_copies(run: Run, image: Image) -> np.ndarray:
    """Features of the copies of an image, int16[transforms, d]; zeros for one that is flat."""
    embedder, data, most = measuring.hooks_of(run.config).embedder, _bytes(run, image), run.config.image.pixels_at_most
    short_side_px = max(COPIES_OF_PX, embedder.short_side_px)
    with measuring.enough_memory(image["key"], data, colour=True, pixels_at_most=most, short_side_px=short_side_px):
        original = pixels.decode(data, pixels_at_most=most, colour=True, short_side_px=short_side_px).pixels
    assert original is not None  # it was decoded when it was fetched, and its bytes are the same
    made = np.zeros((len(TRANSFORMS), embedder.dimensions), np.int16)
    for row, view in enumerate((*(copy for _, copy in copies.copies_of(original)), original[:, ::-1])):
        interrupts.check()
        features = embedder.features(view if embedder.colour else pixels.gray(view))
        if features is not None:
            made[row] = features
    return made


def _looked_at(
    run: Run, search: Search, pool: list[Image], tests: Tests, counted: Comparisons, threshold: float
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
        of_pool = gallery.thumbnail(_bytes(run, pool[row]))
        test_set, test_image = tests.names[number]
        result.append(Looked(cosine, pool[row]["key"], test_set, test_image, of_pool, of_tests[number]))
    return result
