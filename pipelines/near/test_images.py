"""Test images, embedded once.

They go the way of the pool's images: the same decoder, the same size, the same embedder.
"""

import hashlib
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.images import measuring
from altalign.pipelines.read import test_sets
from altalign.pipelines.read.stretches import batch
from altalign.pipelines.run.image_tables import (
    TEST_IMAGE,
    TEST_IMAGES,
    TESTS,
    AugmentedFacts,
    AugmentedUnit,
    TestFacts,
    TestUnit,
)
from altalign.pipelines.run.units import WORK_VERSION, Marks, Run, content, digest

U = TypeVar("U", TestUnit, AugmentedUnit)


def parts(run: Run) -> list[test_sets.Part]:
    """All parts of all test sets, in the order of the settings."""
    return [part for test_set in run.config.decontaminate.named_sets for part in test_sets.parts(test_set)]


def plan(run: Run) -> list[TestUnit]:
    """One unit for each part that is not read yet.

    Parts that were read from other files, or with other settings, are forgotten. The others stay: when a test set is
    added, only that one is read.
    """
    hooks, units = measuring.hooks_of(run.config), list[TestUnit]()
    files = [content(path) for path in run.config.decontaminate.embedder_files]
    size = [hooks.colour, hooks.short_side_px]
    settings = [WORK_VERSION, hooks.embedder.name, files, *size, run.config.decontaminate.mirrored]
    for number, part in enumerate(parts(run)):
        rests_on = [*test_sets.stamps([part]), part.to_json(), settings]
        units.append(TestUnit(name=f"{number:05d}", part=part.to_json(), digest=digest(rests_on)))
    return not_there(run, TESTS, units)


def read(run: Run, unit: TestUnit) -> TestFacts:
    """Embed the test images of a unit.

    Raises:
        UnreadableError: one of them cannot be read.
    """
    part = test_sets.Part.from_json(unit["part"])
    hooks, rows = measuring.hooks_of(run.config), []
    for name, data in test_sets.images(part):
        interrupts.check()
        decoded = _decoded(run, hooks, part.test_set, name, data)
        views = [decoded, decoded[:, ::-1]] if run.config.decontaminate.mirrored else [decoded]
        features = [hooks.embedder.features(view) for view in views]
        as_bytes = [None if each is None else each.tobytes() for each in features]
        rows.append((part.test_set, name, hashlib.sha256(data).hexdigest(), *as_bytes, *[None] * (2 - len(views))))
    images = pa.Table.from_batches([batch(rows, TEST_IMAGE)])
    TEST_IMAGES.write(run, images, unit["name"])
    return TestFacts(unit["digest"], part.test_set, len(rows), images["features"].null_count)


def _decoded(run: Run, hooks: measuring.Hooks, test_set: str, name: str, data: bytes) -> npt.NDArray[np.uint8]:
    decoded = measuring.decoded(data, name=name, config=run.config.image, hooks=hooks)
    if decoded.pixels is None:
        size = f"{decoded.width} x {decoded.height} pixels, more than [image] pixels_at_most"
        damage = decoded.damage or (size if decoded.width else "no known image format")
        raise UnreadableError(
            f"{name}: an image of test set {test_set} cannot be decoded ({damage}); "
            "repair it or take it out of the set: copies of what cannot be read would not be found"
        )
    return decoded.pixels


def table(run: Run) -> pa.Table:
    """All test images, of schema `TEST_IMAGE`, in the order of the settings."""
    units = [TEST_IMAGES.read(run, name) for name in run.finished(TESTS.step)]
    return pa.concat_tables([TEST_IMAGE.empty_table(), *(unit.cast(TEST_IMAGE) for unit in units)])


def features_of(column: "pa.ChunkedArray[Any]") -> npt.NDArray[np.int16]:
    """The features of a column without nulls, int16[n, d]."""
    values = cast(list[bytes], column.to_pylist())
    return np.frombuffer(b"".join(values), np.int16).reshape(len(values), -1) if values else np.zeros((0, 1), np.int16)


def not_there(run: Run, marks: Marks[TestFacts] | Marks[AugmentedFacts], units: list[U]) -> list[U]:
    """The units that are not finished. Deletes the marks of units that have changed, or are no longer planned."""
    digests = {unit["name"]: unit["digest"] for unit in units}
    for name, facts in run.all_facts(marks):
        if facts.digest != digests.get(name) or not storage.exists(run.work(marks.step, f"{name}.parquet")):
            storage.delete(run.mark(marks.step, name))
    return [unit for unit in units if run.facts(marks, unit["name"]) is None]
