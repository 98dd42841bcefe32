"""What `[data] scaled_decoding` brings: CPU time an image, and how far its pixels are from those of a full decode.

    python -m benchmarks.scaled_decoding [--photos FILE.parquet ...] [--rounds 3]

Photographs are in the column `image_bytes` of each file; without `--photos`, in those of the shared data folder beside
the checkout. ALIGN's crop is 289 px of an image resized to 346 px; a crop by area has 60 % of the image or more.
Programs run in `.venv-readers`, which has torch.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.harness import READERS, ROOT, Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, write

ROUNDS = 3
PHOTOS = [ROOT.parent / "shared" / "data" / name for name in ("near_duplicates_images.parquet", "clothing.parquet")]
NAMES = {"near_duplicates_images": "web photos", "clothing": "thumbnails"}
CROPS = {"ALIGN's crop": [], "crop by area": ["--area", "0.6"]}
OF_TIME_AT_MOST = 0.9


def main() -> int:
    """Run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, nargs="+", default=PHOTOS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if missing := [str(path) for path in arguments.photos if not path.is_file()]:
        sys.stderr.write(f"{missing[0]}: no such file; give --photos\n")
        return 1
    try:
        compete(arguments.photos, arguments.rounds)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(photos: list[Path], rounds: int) -> None:
    """All rounds."""
    ours = [str(READERS), "-m", "benchmarks.our_pixels"]
    programs = [
        Program(
            _name(path, crop, way),
            [*ours, str(path), *given, *(["--scaled"] if way == "scaled" else [])],
            says=last_json,
        )
        for path in photos
        for crop, given in CROPS.items()
        for way in ("in full", "scaled")
    ]
    done = interleave(programs, rounds, warm_up=False)
    first = photos[0]
    targets = [
        target(
            f"CPU time of {_name(first, crop, 'scaled')}, of that in full",
            ratio(done, "ms_per_image", _name(first, crop, "scaled"), _name(first, crop, "in full"))["median"],
            at_most=OF_TIME_AT_MOST,
        )
        for crop in CROPS
    ]
    is_full = rounds >= ROUNDS and photos == PHOTOS
    print(write("scaled_decoding", done, targets, environments=WITH_TORCH, is_full=is_full))


def _name(photos: Path, crop: str, way: str) -> str:
    return f"{NAMES.get(photos.stem, photos.stem)}, {crop}, {way}"


if __name__ == "__main__":
    sys.exit(main())
