"""What adding 1 % of input to a run costs, beside making the run: CPU seconds, and bytes of shards that are written.

    python -m benchmarks.adding [--images 20000 60000] [--rows 5000000]

Twice to images in mixed formats, a third of which is dropped, so that a line goes through both sizes; and once to
synthetic rows of text, of which nothing is fetched (the run has some 200 images beside them). All commands start anew
and write their report, which takes as long whatever the size of the run: of few images it is much of the time.
"""

import argparse
import io
import json
import os
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq

from benchmarks.harness import ALTALIGN, CACHE, OURS, Program, interleave, on_line, ratio, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import OUR_PACKAGES, target, write
from benchmarks.rows import MissingError, rows

IMAGES, ROWS, ROUNDS, ONE_IN = [20_000, 60_000], 5_000_000, 3, 100
WHOLE = 5_000_000  # images to which the line goes
BIGRAMS = 500
CPU_AT_MOST, BYTES_AT_MOST = 0.1, 0.02
CONFIG = """
[run]
folder = "run"

[shards]
samples_per_shard = 1000

[[input]]
name = "images"
kind = "webdataset"
paths = ["old/*.tar"]
"""
OF_ROWS = """
[[input]]
name = "rows"
kind = "table"
paths = ["old/*.parquet"]
caption_column = "text"

[text]
vocabulary_size = 1_000_000
"""


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs=2, default=IMAGES)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    try:
        with scratch(folder) as few, scratch(folder) as many, scratch(folder) as of_rows:
            for images, place in zip(arguments.images, (few, many), strict=True):
                parted(generated("mixed", images, folder), place)
            rows_parted(rows(arguments.rows, folder), arguments.rows // ONE_IN, few / "new" / "b.tar", of_rows)
            compete(arguments, few, many, of_rows)
    except (MissingError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def parted(images: Path, place: Path) -> None:
    """Two tars of the samples of a folder of tars: every hundredth is in the second."""
    for name in ("old", "new"):
        (place / name).mkdir()
    (place / "config.toml").write_text(CONFIG, encoding="utf-8")
    before, number = "", -1
    with tarfile.open(place / "old" / "a.tar", "w") as old, tarfile.open(place / "new" / "b.tar", "w") as new:
        for path in sorted(images.glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    key = member.name.partition(".")[0]
                    number, before = number + (key != before), key
                    (old if number % ONE_IN else new).addfile(member, tar.extractfile(member))


def rows_parted(files: Path, new: int, few_images: Path, place: Path) -> None:
    """The files of a folder, and a few images; the last rows of the last file are apart from the others."""
    for name in ("old", "new"):
        (place / name).mkdir()
    (place / "config.toml").write_text(CONFIG + OF_ROWS, encoding="utf-8")
    *whole, last = sorted(files.glob("*.parquet"))
    for path in whole:
        (place / "old" / path.name).symlink_to(path)
    table = pq.read_table(last)
    with_captions(
        few_images, place / "old" / few_images.name, frequent([str(text) for text in table["text"].to_pylist()])
    )
    pq.write_table(table.slice(0, len(table) - new), place / "old" / last.name)
    pq.write_table(table.slice(len(table) - new), place / "new" / "rows.parquet")


def frequent(captions: Sequence[str]) -> list[str]:
    """Three words each, of the most frequent bigrams of these captions: no rule of text drops them."""
    counts = Counter(pair for caption in captions for pair in pairwise(caption.split()))
    most = [pair for pair, _ in counts.most_common(BIGRAMS)]
    return [f"{first} {second} {third}" for first, second in most for then, third in most if then == second]


def with_captions(images: Path, to: Path, captions: Sequence[str]) -> None:
    """A tar of images with other captions, which are taken in turns."""
    turns = cycle(captions)
    with tarfile.open(images) as old, tarfile.open(to, "w") as new:
        for member in old:
            content = old.extractfile(member)
            if member.name.endswith(".txt"):
                caption = next(turns).encode()
                member.size, content = len(caption), io.BytesIO(caption)
            new.addfile(member, content)


def programs(place: Path, what: str, new: str, like: str) -> list[Program]:
    """Making the run of a folder, and adding to it in both ways; each addition finds the run as it was made."""
    run, made = place / "run", place / "made"

    def as_made() -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(made, run, copy_function=os.link)

    def keep() -> None:
        shutil.rmtree(made, ignore_errors=True)
        run.rename(made)
        as_made()

    add = [*ALTALIGN, "add", "run", "--input", new, "--like", like]
    return [
        Program(
            f"curate {what}",
            [*ALTALIGN, "curate", "config.toml"],
            place,
            prepare=lambda: shutil.rmtree(run, ignore_errors=True),
            says=lambda _: {"bytes": sum(written(run, 0).values())},
        ),
        Program(f"add {what}", add, place, prepare=keep, says=lambda _: said(run)),
        Program(f"add {what}, frozen", [*add, "--mode", "frozen"], place, prepare=as_made, says=lambda _: said(run)),
    ]


def compete(arguments: argparse.Namespace, few: Path, many: Path, of_rows: Path) -> None:
    """Make the runs and add to them, in turns."""
    sizes: list[int] = arguments.images
    names = [f"{images:,} images" for images in sizes]
    contestants = [
        *programs(few, names[0], "new/b.tar", "images"),
        *programs(many, names[1], "new/b.tar", "images"),
        *programs(of_rows, "rows", "new/rows.parquet", "rows"),
    ]
    done = interleave(contestants, arguments.rounds)

    def at_whole(program: str) -> float:
        return on_line(sizes, [median(each[program.format(name)]["cpu_s"] for each in done) for name in names], WHOLE)

    said, targets = "CPU seconds, of making the run", list[dict[str, object]]()
    for mode in ("", ", frozen"):
        for what in (*names, "rows"):
            share = ratio(done, "cpu_s", f"add {what}{mode}", f"curate {what}")["median"]
            targets.append(target(f"{said}, add {what}{mode}", share, at_most=CPU_AT_MOST))
        share = at_whole(f"add {{}}{mode}") / at_whole("curate {}")
        what = f"{said}, add {WHOLE:,} images{mode}: the lines through both sizes"
        targets.append(target(what, share, at_most=CPU_AT_MOST))
    share = ratio(done, "bytes", f"add {names[1]}", f"curate {names[1]}")["median"]
    targets.append(target("bytes written by adding images, of all", share, at_most=BYTES_AT_MOST))
    ours = {"ours": (OURS, OUR_PACKAGES)}
    is_full = (arguments.images, arguments.rows, arguments.rounds) == (IMAGES, ROWS, ROUNDS)
    print(
        write("adding", done, targets, is_full=is_full, environments=ours, images=arguments.images, rows=arguments.rows)
    )


def said(run: Path) -> Figures:
    """The bytes of the tars that an addition has written, and how long its stages took."""
    ran = json.loads((run / "run.json").read_text(encoding="utf-8"))["stages"]
    seconds = {f"{stage}_s": facts["seconds"] for stage, facts in ran.items()}
    began_ns = (run / "config.toml").stat().st_mtime_ns  # what is older was there before
    return {"bytes": sum(written(run, began_ns).values()), **seconds}


def written(run: Path, since_ns: int) -> dict[str, int]:
    """Size of each tar that is not older than this."""
    entries = [entry for entry in os.scandir(run / "shards") if entry.name.endswith(".tar")]
    return {entry.name: size.st_size for entry in entries if (size := entry.stat()).st_mtime_ns >= since_ns}


if __name__ == "__main__":
    sys.exit(main())
