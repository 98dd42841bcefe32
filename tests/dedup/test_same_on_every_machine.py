"""Centroids, clusters, pairs and groups do not depend on the CPU, on the BLAS kernels NumPy has, or on its own
dispatch.
"""

import hashlib
import os
import sys

import numpy as np
import pytest

from altalign.dedup.clusters import nearest_clusters, train
from altalign.dedup.image_groups import join
from altalign.dedup.near_duplicates import TestSide as Side  # a name that pytest would take for a test's
from altalign.dedup.near_duplicates import find_pairs
from tests.support.vectors import DISPATCHED, printed

MACHINES = {
    "as it is": {},
    "without NumPy's dispatch": {"NPY_DISABLE_CPU_FEATURES": DISPATCHED},
    "BLAS of an older CPU": {"OPENBLAS_CORETYPE": "Nehalem"},
    "kernels of an older CPU": {
        "NUMBA_CPU_NAME": "nehalem",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Sandybridge",
    },
    "several threads": {"OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": "4"},
}


def digest() -> str:
    """Of all that is made of a test side and a block in whose pairs nothing is far from the threshold."""
    rng, hashed = np.random.default_rng(1), hashlib.sha256()
    tests = rng.integers(-600, 600, (3_000, 100)) // np.arange(1, 101) ** 0.5
    block = tests[:700] + rng.integers(-30, 31, (700, 100))
    tests, block = tests.astype(np.int16), block.astype(np.int16)
    centroids = train(tests, 40)
    pairs = find_pairs(block, Side.build(tests, above=0.975), above=0.975)
    joined = join(np.concatenate([tests, block]), block[:0], above=0.97, at_most=1_500)
    for array in (centroids, nearest_clusters(block, centroids, 10), *pairs, *joined):
        hashed.update(np.ascontiguousarray(array).tobytes())
    return f"{len(pairs.rows)} {len(joined.rows)} {hashed.hexdigest()}"


@pytest.mark.machines
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the older CPUs are x86")
@pytest.mark.parametrize("machine", MACHINES)
def test_all_is_the_same_on_other_machines(machine: str) -> None:
    code = "from tests.dedup import test_same_on_every_machine as here; print(here.digest())"
    there = printed(code, **MACHINES[machine])
    found, joined, _ = there.split()
    assert there.strip() == digest()
    assert (200 < int(found) < 700, 200 < int(joined) < 900) == (True, True)
