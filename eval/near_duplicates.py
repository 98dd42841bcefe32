"""Scores without the test images that have near-duplicates in the pool, where a curation has looked for them.

A run that names the set in `[decontaminate] test_sets` has dropped the near-duplicates of its images, and writes which
test images these are: all that an image of the pool is near to. So of a model that was trained on that run they are no
leak; for one that was trained on the same pool without decontamination they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.audit_tables import NEAR_TEST_IMAGES
from altalign.errors import UsageError
from altalign.eval.image_sources import Images, reading
from altalign.eval.outcomes import Measure, Result, chosen


@dataclass(frozen=True)
class Without:
    """Metrics without the images that have a near-duplicate."""

    run: str  # the curation that looked for them
    images: int  # how many are left out
    metrics: dict[str, float]  # of the others; empty where none are left


def without(result: Result, images: Images, measure: Measure, *, test_set: str, runs: Sequence[str]) -> list[Without]:
    """The metrics without such images, for each run that knows this test set.

    Raises UsageError: a run's names are of no image of the set.
    """
    found = []
    for run in runs:
        named = near(run, test_set)
        if named is None:
            continue
        # a set may have the same bytes under other names than the run's, which are as near
        of_run = {
            identity
            for identity, name in zip(images.identities, images.names, strict=True)
            if not named.isdisjoint(_ends(name))
        }
        if named and not of_run:
            raise UsageError(
                f"{run}: no image of the set is called like {min(named)!r}, a test image of {test_set} there; give "
                "the set another name"
            )
        is_near = np.array([images.identities[row] in of_run for row in result.rows], bool)
        stays = chosen(result.outcomes, ~is_near)
        found.append(Without(run, int(is_near.sum()), {} if is_near.all() else measure(stays)))
    return found


def near(run: str, test_set: str) -> set[str] | None:
    """Names of the test images of a set that a run found near-duplicates of; None: it did not look for them."""
    facts = storage.read_json(storage.join(run, "audit", "near_duplicates", "found.json"))
    path = storage.join(run, *NEAR_TEST_IMAGES.path.split("/"))
    if test_set not in facts.get("test_sets", {}) or not storage.exists(path):
        return None
    with reading(path, "Parquet"), storage.open_read(path) as file:
        rows = pq.read_table(file, columns=["test_set", "test_image"], use_threads=False).to_pylist()
    return {row["test_image"] for row in rows if row["test_set"] == test_set}


def _ends(name: str) -> Iterator[str]:
    """The name of an image without more and more of the folders that it begins with."""
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name
