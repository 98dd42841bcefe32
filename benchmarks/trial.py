"""What a trial of 20,000 images costs beside the whole curation, and how near it comes to what the whole leaves.

    python -m benchmarks.trial [--images 100000] [--tried 20000]

The images are generated, in mixed formats, and lie in tars: none is fetched. The last of the three commands goes on
from the trial, and leaves what the first has left.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness import ALTALIGN, CACHE, OURS, Program, interleave, ratio, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import OUR_PACKAGES, target, write
from benchmarks.whole import CONFIG

IMAGES, TRIED = 100_000, 20_000
HALF_WIDTH_AT_MOST, INSIDE_AT_LEAST = 0.1, 0.9
OFTEN = 0.05  # of all pairs: what is rarer is known less well


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--tried", type=int, default=TRIED)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    try:
        with scratch(folder) as place:
            images = generated("mixed", arguments.images, folder)
            (place / "config.toml").write_text(CONFIG.format(images=images), encoding="utf-8")
            compete(arguments.images, arguments.tried, place)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(images: int, tried: int, place: Path) -> None:
    """Curate, try, and curate what was tried."""
    run = place / "run"
    curate = [*ALTALIGN, "curate", "config.toml"]
    programs = [
        Program("curate", curate, place),
        Program(
            "trial",
            [*ALTALIGN, "trial", "config.toml", "--images", str(tried)],
            place,
            prepare=lambda: run.rename(place / "whole"),
            says=lambda _: compared(run / "trial" / "trial.json", place / "whole" / "counts.parquet"),
        ),
        Program("curate after the trial", curate, place, prepare=lambda: shutil.rmtree(place / "whole")),
    ]
    done = interleave(programs, 1, warm_up=False)
    found = done[0]["trial"]
    targets = [
        target(f"half-width of amounts of {OFTEN:.0%} and more", found["half_width"], at_most=HALF_WIDTH_AT_MOST),
        target("amounts in their intervals", found["inside"] / found["amounts"], at_least=INSIDE_AT_LEAST),
    ]
    shares = {name: ratio(done, "cpu_s", name, "curate") for name in ("trial", "curate after the trial")}
    ours = {"ours": (OURS, OUR_PACKAGES)}
    is_full = (images, tried) == (IMAGES, TRIED)
    print(write("trial", done, targets, is_full=is_full, environments=ours, images=images, tried=tried, cpu_of=shares))


def compared(trial: Path, counts: Path) -> Figures:
    """How many amounts of pairs were predicted, and lie in their intervals; the widest half of one, of its amount."""
    predicted = [of for of in json.loads(trial.read_text(encoding="utf-8"))["predicted"] if of["of"] == "pairs"]
    rows: list[dict[str, Any]] = pq.read_table(counts).to_pylist()

    def truth(of: dict[str, Any]) -> int:
        return sum(row["rows"] for row in rows if all(row[name] == of[name] for name in ("stage", "reason")))

    known = [of for of in predicted if of["stage"] in {row["stage"] for row in rows}]
    often = [of for of in known if of["value"] >= OFTEN * max(of["value"] for of in known)]
    return {
        "amounts": len(known),
        "inside": sum(of["least"] <= truth(of) <= of["most"] for of in known),
        "half_width": max((of["most"] - of["least"]) / 2 / of["value"] for of in often),
    }


if __name__ == "__main__":
    sys.exit(main())
