"""How long it takes to take one sample in a thousand out of a run, on a disk and in S3, and what that is of 10 million.

    python -m benchmarks.removing [--samples 400000 700000]

Samples are in shards by a hash, so every shard has some of them, and all are written anew: as of 10,000 of 10 million.
The run is a small one that was curated, with other samples: of one image of 6 kB, each with a caption, a URL and a key
of its own. As many rows were dropped by the text rules. S3 is versitygw on this machine. A removal ends with
the report, and with reading every file again. Both sizes are so large that processes share the work, as of 10 million.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from altalign import generations, listing, storage
from altalign.audit_tables import FAILED_ROWS, FUNNEL
from altalign.counts import Counts, FailedCounts
from altalign.curation import CurateConfig
from altalign.key import image_id, sample_key
from altalign.pipelines.card.facts import CardFacts
from altalign.pipelines.derive import counting, parents
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.files import parquet
from altalign.pipelines.opening import summary
from altalign.pipelines.run import manifest
from altalign.pipelines.run.artefacts.written import ShardFacts, files_of
from altalign.pipelines.run.shard_files import write_shard
from altalign.pipelines.run.units import Run
from altalign.reasons import KEPT, DropReason, Stage
from altalign.schema import DROPPED
from benchmarks.harness import ALTALIGN, CACHE, OURS, Program, interleave, on_line, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import OUR_PACKAGES, target, write
from benchmarks.stores import s3

SAMPLES, ROUNDS, ONE_IN, WHOLE = (400_000, 700_000), 1, 1_000, 10_000_000
SECONDS_AT_MOST, PER_SHARD, PER_FILE = 600.0, 10_000, 500_000
CONFIG = """
[run]
folder = "small"
keep_work = false

[[input]]
name = "tars"
kind = "webdataset"
paths = ["{images}/*.tar"]
"""


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs=2, default=SAMPLES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    try:
        with scratch(folder) as place, s3(place, "runs"):
            (place / "config.toml").write_text(CONFIG.format(images=generated("mixed", 300, folder)), encoding="utf-8")
            subprocess.run([*ALTALIGN, "curate", "config.toml"], cwd=place, check=True)
            compete(tuple(arguments.samples), arguments.rounds, place)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(samples: tuple[int, ...], rounds: int, place: Path) -> None:
    """Remove on a disk and in the store, from runs of two sizes."""
    done = interleave([program for of in samples for program in removals(of, place)], rounds, warm_up=False)
    targets = list[Figures]()
    for where in ("disk", "S3"):
        seconds = on_line(samples, [min(each[f"{where}, {of:,}"]["wall_s"] for each in done) for of in samples], WHOLE)
        what = f"seconds to take {WHOLE // ONE_IN:,} of {WHOLE:,} samples out, {where}: the line through both sizes"
        targets.append(target(what, seconds, at_most=SECONDS_AT_MOST))
    ours = {"ours": (OURS, OUR_PACKAGES)}
    is_full = samples == SAMPLES and rounds == ROUNDS
    print(write("removing", done, targets, is_full=is_full, environments=ours, samples=list(samples)))


def removals(samples: int, place: Path) -> Iterator[Program]:
    """A removal from a run of so many samples on a disk, and one in the store."""
    run, keys = place / f"run-{samples}", place / f"keys-{samples}"
    keys.write_text("\n".join(grown(run, samples, place / "small")), encoding="utf-8")
    for where, copy, named in (
        ("disk", place / "copy", "copy"),
        ("S3", place / "files" / "runs" / "copy", "s3://runs/copy"),
    ):

        def prepare(copy: Path = copy) -> None:
            for path in (place / "copy", place / "files" / "runs" / "copy"):
                shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(run, copy, copy_function=os.link)  # files of a run are replaced, never written to

        yield Program(f"{where}, {samples:,}", [*ALTALIGN, "remove", named, "--keys", str(keys)], place, prepare)


# The run -------------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A shard to write: where, its name, the numbers of its samples in order, and their image."""

    folder: str
    name: str
    numbers: Sequence[int]
    image: bytes


def grown(run: Path, samples: int, small: Path) -> list[str]:
    """A finished run of so many samples, made of a small one; gives the keys of one in a thousand."""
    shutil.copytree(small, run)
    config = CurateConfig.load(run / "config.toml", [f"run.folder={json.dumps(str(run))}"])
    parent, before = parents.opened(str(run), config), storage.read_json(str(run / "summary.json"))
    numbers = [number for _, number in sorted((image_id(url(number)), number) for number in range(samples))]
    parts = [numbers[begin : begin + PER_SHARD] for begin in range(0, samples, PER_SHARD)]
    shutil.rmtree(run / "shards")
    picture = jpeg()
    cuts = [Cut(str(run / "shards"), generations.named(1, at), part, picture) for at, part in enumerate(parts)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as own:
        shards = list(zip((cut.name for cut in cuts), own.map(shard_of, cuts), strict=True))
    dropped = dropped_rows(run, samples)
    size = sum(of.bytes for _, of in shards)
    with storage.noted() as block:
        counts = totals(run, parent, samples)
        funnel = parquet.read_table(str(run / FUNNEL.path)).to_pylist()
        for row in funnel:
            if row["step"] == "shards":
                row.update(images=samples, bytes=size)
        parquet.write(str(run / FUNNEL.path), pa.Table.from_pylist(funnel, FUNNEL.schema), FUNNEL.schema)
        of_totals = {"stages": counts.summary(counts.stages_of_run()), "pairs": samples, "images": samples}
        facts = {**before, **of_totals, "bytes": size}
        storage.write_json(str(run / "summary.json"), facts)
    listed = {name: of for name, of in listing.read(str(run)).items() if not name.startswith("shards/")}
    listed |= dropped | {path: of for name, made in shards for path, of in files_of(name, made)}
    of = Run(str(run), config, ())
    listed |= manifest.written(of, block)
    manifest.write(of, shards, listed, CardFacts(config, counts, facts, summary.notes(of)), block)
    return [sample_key(url(number), caption(number)) for number in range(0, samples, ONE_IN)]


def url(number: int) -> str:
    """The URL of an image: of 1,000 hosts."""
    return f"https://host-{number % 1_000}.example/{number}.jpg"


def caption(number: int) -> str:
    """The caption of a sample."""
    return f"a red house, number {number}, near the sea"


def jpeg() -> bytes:
    """An image of about 6 kB."""
    noise = np.random.default_rng(0).integers(96, 160, (30, 30, 3), np.uint8)
    buffer = BytesIO()
    Image.fromarray(noise).resize((256, 256)).save(buffer, "jpeg", quality=60)
    return buffer.getvalue()


def shard_of(cut: Cut) -> ShardFacts:
    """Write a shard."""
    return write_shard(cut.folder, cut.name, ((row_of(number, cut.image), cut.image) for number in cut.numbers))


def row_of(number: int, image: bytes) -> dict[str, Any]:
    """A row of a side-car."""
    identity = url(number)
    digest = sha256(image).hexdigest()
    return {
        **{"key": sample_key(identity, caption(number)), "image_id": image_id(identity), "image_url": identity},
        **{"caption": caption(number), "page_url": f"https://page-{number % 5_000}.example/", "source": "tars"},
        **{"source_key": f"sample-{number}", "extra": None, "width": 256, "height": 256, "format": "jpeg"},
        **{"bytes": len(image), "sha256": digest, "found_sha256": digest, "words": 8},
    }


def dropped_rows(run: Path, samples: int) -> dict[str, storage.Written]:
    """As many rows that the text rules dropped, in files of which all have the same rows; gives these files."""
    files, folder = dict[str, storage.Written](), run / "dropped" / "judge"
    folder.mkdir(parents=True, exist_ok=True)
    for at, begin in enumerate(range(0, samples, PER_FILE)):
        path, rows = folder / f"more-{at:06d}.parquet", min(PER_FILE, samples - begin)
        of_rows = [image_id(f"dropped {number}") for number in range(rows)]
        columns = {"key": of_rows, "image_id": of_rows[::-1], "stage": Stage.JUDGE.value, "source": "tars"}
        columns |= {"image_url": [f"https://other.example/{number}" for number in range(rows)]}
        columns |= {"caption": ["house"] * rows, "reason": DropReason.TEXT_TOO_SHORT.value}
        columns |= {"failed": [[DropReason.TEXT_TOO_SHORT.value]] * rows}
        parquet.write(str(path), parquet.table(columns, DROPPED), DROPPED)
        files[f"dropped/judge/{path.name}"] = listing.digest(str(path))
    return files


def totals(run: Path, parent: Parent, samples: int) -> Counts:
    """Write counts with these samples instead, and as many rows that `judge` dropped."""
    more = samples - sum(shard.rows for shard in parent.shards)
    counts, failed = Counts.from_json(counting.rows(parent)), FailedCounts.from_json(counting.failed(parent))
    for stage in counts.stages_of_run():
        kept = samples + more if stage is Stage.EXTRACT else more
        counts.add_rows(stage, "tars", KEPT, kept)
        failed.add_rows(stage, "tars", (), kept)
    counts.add_rows(Stage.JUDGE, "tars", DropReason.TEXT_TOO_SHORT, samples)
    failed.add_rows(Stage.JUDGE, "tars", (DropReason.TEXT_TOO_SHORT,), samples)
    failed.check(counts)
    parquet.write(str(run / "counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
    parquet.write(str(run / FAILED_ROWS.path), failed.to_arrow(), FAILED_ROWS.schema)
    return counts


if __name__ == "__main__":
    sys.exit(main())
