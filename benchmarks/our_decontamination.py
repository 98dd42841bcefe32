"""The search of the stage `decontaminate` over a pool whose images are fetched. Prints one line of JSON.

The line says too what describing an image costs.

    python -m benchmarks.our_decontamination search FOLDER TESTS.npy POOL.npy
    python -m benchmarks.our_decontamination describe IMAGES.tar [--passes 3]

`search` writes work/ of a run in FOLDER, as `fetch` and the reading of test images leave it, out of vectors int16[n,
64]; then it runs the steps that build the index, find pairs and drop rows. `describe` decodes images to what the image
rules ask for, and times the descriptor apart.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.curation import CurateConfig
from altalign.dedup import clusters, embed
from altalign.filters import pixels
from altalign.pipelines import curate
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.files import parquet
from altalign.pipelines.files.ranges import Range, Ranges
from altalign.pipelines.images import calibration_files, embedders
from altalign.pipelines.run.artefacts.decontaminated import (
    DECONTAMINATED,
    FOUND,
    INDEX,
    ONLY,
    TEST_IMAGE,
    TESTS,
    TestFacts,
    TestPart,
)
from altalign.pipelines.run.artefacts.fetched import FETCHED, FETCHED_ROW, Fetched
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run
from benchmarks.image_members import places

ABOVE = 0.975


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    of_search = ways.add_parser("search")
    for name in ("folder", "tests", "pool"):
        of_search.add_argument(name, type=Path)
    of_describe = ways.add_parser("describe")
    of_describe.add_argument("images", type=Path)
    of_describe.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    figures = (
        search(arguments.folder, arguments.tests, arguments.pool)
        if arguments.way == "search"
        else describe(arguments.images, arguments.passes)
    )
    print(json.dumps(figures))
    return 0


# Search ---------------------------------------------------------------------------------------------------------------


def search(folder: Path, tests: Path, pool: Path) -> dict[str, float]:
    """Seconds to build the index, and CPU time of finding and dropping an image of the pool."""
    config = CurateConfig.from_values(
        {
            "run": {"folder": str(folder / "run")},
            "input": [{"kind": "table", "paths": ["none.parquet"]}],
            "decontaminate": {"test_sets": ["tests"]},
        },
        where="benchmark",
    )
    run = Run(config.run.folder, config, ())
    images = _write_pool(run, pool)
    _write_tests(run, np.load(tests, mmap_mode="r"))
    _write_calibration(run, np.load(pool, mmap_mode="r"))
    steps = {step.marks: step for step in curate.PIPELINE["decontaminate"][0]}
    pipeline_options = options(config.engine, [])
    with storage.temporary(run.work("temporary")), started(run, pipeline_options):
        begin = time.process_time()
        curate.run_step(run, steps[INDEX], pipeline_options)
        built = time.process_time()
        for marks in (FOUND, DECONTAMINATED):
            curate.run_step(run, steps[marks], pipeline_options)
        done = time.process_time()
    dropped = images - sum(facts.kept for _, facts in run.all_facts(DECONTAMINATED))
    return {
        "images": images,
        "dropped": dropped,
        "build_s": built - begin,
        "us_per_image": (done - built) / images * 1e6,
    }


def _write_pool(run: Run, path: Path) -> int:
    vectors = np.load(path, mmap_mode="r")
    for number, begin in enumerate(range(0, len(vectors), IMAGES_PER_UNIT)):
        some, name = vectors[begin : begin + IMAGES_PER_UNIT], f"{number:05d}-00000"
        count = len(some)
        ids = [f"{begin + i:032x}" for i in range(count)]
        columns = {
            "key": ids,
            "image_id": ids,
            "caption": ["a caption of five words"] * count,
            "source": ["table"] * count,
        }
        columns |= {
            "found_sha256": [f"{begin + i:064x}" for i in range(count)],
            "image_url": [f"https://img.example/{i}.jpg" for i in ids],
        }
        table = pa.table(
            {field.name: pa.array(columns.get(field.name, [None] * count), field.type) for field in FETCHED_ROW},
            schema=FETCHED_ROW,
        )
        files = Fetched(run, name)
        files.write_rows(table)
        files.write_features(_coefficients(some))
        counts = [["image", "table", "kept", count]]
        storage.write_json(run.mark(FETCHED.step, name), {"kept": count, "counts": counts, "funnel": []})
    return len(vectors)


def _coefficients(vectors: np.ndarray) -> np.ndarray:
    """Coefficients of which the map makes such vectors: the first 64 of 192."""
    return np.pad(vectors, ((0, 0), (0, embed.COEFFICIENTS - vectors.shape[1])))


def _write_tests(run: Run, vectors: np.ndarray) -> None:
    columns = {
        "test_set": pa.array(["tests"] * len(vectors)),
        "test_image": pa.array([f"{i}.jpg" for i in range(len(vectors))]),
        "sha256": pa.array([f"f{i:063x}" for i in range(len(vectors))]),
        "features": pa.array([row.tobytes() for row in _coefficients(vectors)], pa.binary()),
        "mirrored": pa.nulls(len(vectors), pa.binary()),
    }
    parquet.write(TestPart(run, ONLY).images, pa.table(columns, schema=TEST_IMAGE), TEST_IMAGE)
    facts = TestFacts(digest="", test_set="tests", images=len(vectors), flat=0)
    storage.write_json(run.mark(TESTS.step, ONLY), facts.to_json())


def _write_calibration(run: Run, pool: np.ndarray) -> None:
    mapped = embed.Map(
        np.zeros(embed.COEFFICIENTS, np.int32), np.eye(embed.DIMENSIONS, embed.COEFFICIENTS, dtype=np.int32)
    )
    centroids = clusters.train(mapped.embed(_coefficients(pool[:65_536])), 1_024)
    calibration_files.save(
        run.path("audit", "near_duplicates"), calibration_files.Calibration("dct", ABOVE, mapped, centroids), {}
    )


# Describing -----------------------------------------------------------------------------------------------------------


def describe(path: Path, passes: int) -> dict[str, float]:
    """CPU time of decoding an image, and of its descriptor."""
    embedder, decoding, describing, images = embedders.load("dct"), 0.0, 0.0, 0
    for number in range(passes + 1):  # the first compiles kernels and loads codecs
        found = list(places(path))
        with Ranges([Range(place.path, place.offset, place.length) for place in found]) as ranges:
            for wanted in ranges:
                data = ranges.read(wanted)
                begin = time.process_time()
                decoded = pixels.decode(
                    data, pixels_at_most=10**9, colour=False, short_side_px=embedder.short_side_px
                ).pixels
                between = time.process_time()
                if decoded is not None:
                    embedder.features(decoded)
                if number:
                    decoding, describing, images = (
                        decoding + between - begin,
                        describing + time.process_time() - between,
                        images + 1,
                    )
    return {"images": images, "decode_us": decoding / images * 1e6, "describe_us": describing / images * 1e6}


if __name__ == "__main__":
    sys.exit(main())
