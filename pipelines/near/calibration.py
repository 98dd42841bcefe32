"""`altalign calibrate RUN OUT`: measures the search on a run's own images and chooses a threshold within a budget.

A map is learned from copies of half of a sample; the other half says how many copies of each kind are found. Images of
the pool, which are in the run's `work/`, are searched for lower cosines than any threshold, which says how often
unrelated images are taken for one another. Nothing of the run is changed.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.data.stages import own_files
from altalign.dedup import copies, embed
from altalign.dedup import thresholds as measures
from altalign.dedup.clusters import IN_A_BUCKET
from altalign.dedup.thresholds import SEARCHED_ABOVE, Comparisons, Line, Share, short
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pages import frame
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import comparing, gallery, index
from altalign.pipelines.near.comparing import Search
from altalign.pipelines.run.image_bytes import places_as_found, read_one
from altalign.pipelines.run.image_tables import FEATURES, FETCHED, STORED_IMAGES, kept_images
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, shown

POOL = 20_000  # images of the pool that are searched for
SAMPLE_AT_LEAST = 2 * index.TRAINING_IMAGES_AT_LEAST
COPIES_OF_PX = 256  # short side that copies are made of, at least
MIRRORED = "mirrored"  # a copy that no map is shown: the view of that name finds it, or nothing does
TRANSFORMS = (*copies.TRANSFORMS, MIRRORED)
LOOKED_AT = 50
COVERED_FROM = 0.5  # recall; below it a kind of copies is called not covered

PAGE = "report.html"

Facts = dict[str, Any]  # what `calibration.json` says
Looked = dict[str, Any]  # a pair: cosine, key of the pool's image, test_set, test_image; of_pool and of_test as WebP
Image = dict[str, Any]  # of the pool: key, place of its bytes, found_sha256, and sha256 of what a shard will hold


class Tests(NamedTuple):
    """Test images."""

    names: list[tuple[str, str]]  # of all: test set, test image
    sizes: list[int]  # how many each part of a test set has
    numbers: np.ndarray  # of those that are not flat, int64[n]; the rest is of these
    sha256: np.ndarray  # of their bytes
    features: np.ndarray  # int16[n, d]
    mirrored: np.ndarray  # of their mirror images


def calibrate(
    run: Run, out: str, *, pairs: str, images: str, false_positives: float, sample: int
) -> tuple[Calibration, Facts]:
    """Calibrate on so many images of a run whose images are fetched, and write the calibration to `out`.

    `pairs` and `images` are files of labelled pairs, or empty; `false_positives` are allowed per pool image.
    """
    files = [*calibration_files.files_of(out), storage.join(out, PAGE)]
    settings = run.config.decontaminate
    if not settings.test_sets:
        raise UsageError(
            f"{run.folder}: no test sets, and a threshold depends on how many test images there are; give --test-set "
            "NAME=PATH"
        )
    if not 0 < false_positives < inf:
        raise UsageError(f"--false-positives {false_positives:g}: not a number above 0, such as 1e-3")
    if not SAMPLE_AT_LEAST <= sample <= POOL:
        what = "few" if sample < SAMPLE_AT_LEAST else "many"
        raise UsageError(f"--sample {sample}: too {what}; give {SAMPLE_AT_LEAST} to {POOL:,} images")
    if bool(pairs) != bool(images):
        raise UsageError("--pairs and --images belong together: the pairs, and the images that they name")
    if pairs:
        comparing.check_labelled(pairs, images)
    storage.check(out)
    if storage.is_inside(out, run.folder):
        raise UsageError(f"{out}: in the run's own folder {run.folder}, whose files are made anew; choose another")
    if storage.kind(out) not in ("folder", "missing"):
        raise UsageError(f"{out}: a file, where the folder of a calibration is meant; choose another")
    entries = {name.partition(".partial-")[0] for name in storage.entries(out)}
    if calibration_files.FILE not in entries and entries - {storage.name(path) for path in files}:
        raise UsageError(
            f"{out}: a folder that is no calibration (it has no {calibration_files.FILE}); choose another, or empty it"
        )
    with storage.locked(run.folder), own_files(run.folder):
        calibration, facts, looked_at = _measured(run, false_positives, sample)
        if pairs:
            bucket = IN_A_BUCKET if settings.require_bucket else 0
            facts["labelled_pairs"] = comparing.measure_labelled(pairs, images, run.config, calibration, bucket)
        for path in files:
            storage.delete(path)
        storage.sweep(out)
        storage.write_bytes(files[-1], page(calibration, looked_at))
        calibration_files.save(out, calibration, facts)  # its JSON last
    return calibration, facts


def _measured(run: Run, budget: float, sampled: int) -> tuple[Calibration, Facts, list[Looked]]:
    """All that is measured without labels, in order."""
    settings, threads = run.config.decontaminate, run.config.engine.threads
    embedder = measuring.hooks_of(run.config).embedder
    tests, (pool, features) = _tests(run), _pool(run)
    # the first image with each sequence of bytes: none is both shown to the map and searched for
    sha256 = np.array([image["found_sha256"] for image in pool], "S64")
    sample = np.sort(np.unique(sha256, return_index=True)[1])[:sampled]
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
    of_sample, bar = [pool[i] for i in sample], ("making copies", "images")
    made = in_threads(partial(_features_of_copies, run), of_sample, threads, bar=bar)
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
    compared = len(tests.numbers) * (1 + settings.mirrored)  # views of test images with each image of the pool
    lines, above = _threshold(run, pairs.without(true_pairs), decoys, compared, budget)
    calibration = replace(calibration, similarity_above=above)
    by_recall = _recall(run.config, calibration, vectors[measured], of_measured)
    rates = [float(line.rates(above)) for line in lines]  # what is expected is not below what decoys say
    facts = {
        "clusters": len(centroids),
        "training_images": len(training) if mapped else 0,
        "copied": len(measured),
        "pool_images": len(pool),
        "test_sets": dict(Counter(name for name, _ in tests.names)),
        "flat_test_images": len(tests.names) - len(tests.numbers),
        "views": 1 + settings.mirrored,
        "false_positives_at_most": budget,
        "false_positives_expected": short(compared * max(rates)),
        "is_extrapolated": rates[0] < lines[0].fitted_to,
        "taken_for_copies": true_pairs,
        "recall": {name: share.to_json() for name, share in by_recall},
        "not_covered": [name for name, share in by_recall if share.value < COVERED_FROM],
        "test_images_found": _of_rate(pairs, above, lines[0]),
        "decoys_found": _of_rate(decoys, above, lines[1] if len(lines) > 1 else None),
        "labelled_pairs": None,
    }
    return calibration, facts, _looked_at(run, search, pool, tests, pairs, above)


def _threshold(
    run: Run, unrelated: Comparisons, decoys: Comparisons, compared: int, budget: float
) -> tuple[list[Line], float]:
    """The rates of false positives, of decoys too where they suffice, and the threshold that keeps the budget."""
    try:
        lines = [measures.fit(unrelated)]
        with suppress(ValueError):  # of too few decoys
            lines.append(measures.fit(decoys))
    except ValueError as error:
        raise AltalignError(f"{run.folder}: {error}") from error
    try:
        return lines, measures.smallest_threshold(lines, comparisons=compared, budget=budget)
    except ValueError as error:
        raise UsageError(f"--false-positives {budget:g}: {error}; allow more") from error


def _recall(
    config: CurateConfig, calibration: Calibration, originals: np.ndarray, features: np.ndarray
) -> list[tuple[str, Share]]:
    """The share of copies that is found, by transform, the worst first.

    `originals` are vectors int16[n, d]; `features` are those of their copies, int16[n, transforms, d].
    """
    of_copies = calibration.vectors_or_zeros(features.reshape(-1, features.shape[-1]))
    of_mirrors = of_copies.reshape(len(originals), len(TRANSFORMS), -1)[:, TRANSFORMS.index(MIRRORED)]
    views = (originals, of_mirrors)[: 1 + config.decontaminate.mirrored]
    of_views, bucket = [np.repeat(view, len(TRANSFORMS), axis=0) for view in views], config.decontaminate.require_bucket
    cosines = measures.of_best_view(of_copies, of_views, calibration.centroids, at_least=IN_A_BUCKET * bucket)
    above = calibration.similarity_above
    recall = measures.recall_by_transform([*TRANSFORMS] * len(originals), cosines, similarity_above=above)
    return sorted(recall.items(), key=lambda entry: entry[1].value)


def _of_rate(counted: Comparisons, above: float, line: Line | None) -> dict[str, object]:
    fitted = {name: short(value) for name, value in asdict(line).items()} if line else None
    return {"above": counted.above(above).hits, "comparisons": counted.compared, "line": fitted}


def _pool(run: Run) -> tuple[list[Image], np.ndarray]:
    """The images with the smallest image_id, a hash, that are not flat; and their features (int16[n, d])."""
    images, rows = list[Image](), [np.zeros((0, measuring.hooks_of(run.config).embedder.dimensions), np.int16)]
    for name in run.finished(FETCHED.step):
        interrupts.check()
        features = FEATURES.array(run, name)
        numbers = np.flatnonzero(features.any(axis=1))[: POOL - len(images)]
        kept = kept_images(run, name).select(["key", "found_sha256"]).take(numbers)
        stored = STORED_IMAGES.read(run, name).take(numbers)
        kept = kept.append_column("sha256", stored["sha256"])
        places = places_as_found(run, name, stored)
        images += [{**row, "place": place} for row, place in zip(kept.to_pylist(), places, strict=True)]
        rows.append(features[numbers])
        if len(images) == POOL:
            break
    return images, np.concatenate(rows)


def _tests(run: Run) -> Tests:
    """All test images, with mirrored views, which are decoys."""
    settings = run.config.decontaminate.model_copy(update={"mirrored": True})
    config = run.config.model_copy(update={"decontaminate": settings})
    parts, threads, bar = index.parts_of_tests(config), config.engine.threads, ("test images", "parts")
    parts = in_threads(partial(index.embedded_tests, config), parts, threads, bar=bar)
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


def _bytes(image: Image) -> bytes:
    place, data = image["place"], read_one(image["place"])
    if hashlib.sha256(data).hexdigest() not in (image["found_sha256"], image["sha256"]):
        raise UnreadableError(f"{place.path}: the image at byte {place.offset:,} is not the one that was fetched")
    return data


def _features_of_copies(run: Run, image: Image) -> np.ndarray:
    """Features of the copies of an image, int16[transforms, d]; zeros for one that is flat."""
    embedder, data, most = measuring.hooks_of(run.config).embedder, _bytes(image), run.config.image.pixels_at_most
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
        of_pool = gallery.thumbnail(_bytes(pool[row]))
        test_set, test_image = tests.names[number]
        of_pair = {"cosine": cosine, "key": pool[row]["key"], "of_pool": of_pool, "of_test": of_tests[number]}
        result.append({**of_pair, "test_set": test_set, "test_image": test_image})
    return result


def page(calibration: Calibration, looked_at: Sequence[Looked]) -> bytes:
    """A page of the pairs to look at, the greatest cosine first; nothing in it depends on the machine or the time."""
    above, folder = calibration.similarity_above, Path(frame.__file__).parent
    return frame.rendered(folder, "calibration.html", threshold=above, looked_at=looked_at, picture=frame.data_uri)


def show(calibration: Calibration, facts: Facts, console: Console) -> None:
    """Print recall by kind of copies, the worst first; then the threshold, and what is not covered by it."""
    trained = f"{facts['training_images']:,} training images made the map; " if facts["training_images"] else ""
    console.print(f"{trained}copies of {facts['copied']:,} others were looked for:")
    table = Table("copies")
    for name in ("found", "of", "recall", "95 % interval"):
        table.add_column(name, justify="right")
    for name, of in facts["recall"].items():
        recall, interval = f"{of['found'] / of['asked']:.1%}", f"{of['least']:.1%} to {of['most']:.1%}"
        style = "red" if name in facts["not_covered"] else None
        table.add_row(shown(name), f"{of['found']:,}", f"{of['asked']:,}", recall, interval, style=style)
    console.print(table)
    beyond = ", extrapolated from more frequent ones" * facts["is_extrapolated"]
    tests = many(sum(facts["test_sets"].values()) - facts["flat_test_images"], "test image")
    console.print(f"Threshold: a cosine above {calibration.similarity_above:g}.")
    console.print(
        f"Expected false positives: {facts['false_positives_expected']:.2g} a pool image{beyond}; "
        f"{facts['false_positives_at_most']:g} allowed, for {tests} in {many(facts['views'], 'view')}."
    )
    if labelled := facts["labelled_pairs"]:
        recall, precision = (_share(labelled[name]) for name in ("recall", "precision"))
        broken = f"; {many(labelled['left_out'], 'pair')} left out: an image cannot be decoded" * bool(
            labelled["left_out"]
        )
        console.print(f"Labelled pairs: recall {recall}; precision {precision}{broken}.")
        by_how = labelled["by_how"].items()
        if lost := [f"{how} {of['found']} of {of['asked']}" for how, of in by_how if of["found"] < of["asked"]]:
            console.print(shown(f"Not all found of: {', '.join(lost)}."))
    if facts["not_covered"]:
        shares = {name: of["found"] / of["asked"] for name, of in facts["recall"].items()}
        names = ", ".join(f"{name} ({shares[name]:.0%})" for name in facts["not_covered"])
        lost = "NOT COVERED, fewer than half of the copies are found: "
        console.print(shown(f"{lost}{names}. Such copies of test images stay in the data."), style="bold red")


def _share(of: Mapping[str, Any]) -> str:
    if not of["asked"]:
        return "unknown (none)"
    interval = f"95 % interval {of['least']:.1%} to {of['most']:.1%}"
    return f"{of['found']:,} of {of['asked']:,} ({of['found'] / of['asked']:.1%}, {interval})"
