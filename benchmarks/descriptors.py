"""Recall of copies at equal false positives, by transform: dct and phash beside the hashes of imagehash.

    python -m benchmarks.descriptors [--data FOLDER]

On photographs (clothing.parquet) and clip art (openclipart.parquet). The map of dct is learned from 250 photographs and
90 drawings that are used for nothing else; 250 other images of each set are copied in 28 ways. A false positive is a
pair of two images of one set. Pairs are of images that are not flat, no bytes twice, and one of those whose thumbnails
correlate above 0.98 (copies: all descriptors find them). Recoloured variants of one drawing, flags and signs are left
and count as false, so clip art's figures are pessimistic.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from altalign.dedup.copies import TRANSFORMS
from benchmarks.harness import CACHE, OURS, PEERS, ROOT, Program, interleave, last_json, scratch
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import target, write
from benchmarks.rows import MissingError

SHARED_DATA = ROOT.parent / "shared" / "data"
# and how many to learn from
SETS = {"photographs": ("clothing.parquet", 250), "clip art": ("openclipart.parquet", 90)}
COPIED = 250
RATES = (1e-5, 1e-6)  # false positives a comparison
USUAL_BITS = 10  # of imagehash: a distance up to this is a match
ALIKE_ABOVE = 0.98
ROWS_AT_A_TIME = 500

# The array of each descriptor, and the cosine at which it usually calls a pair a match.
USUAL = {
    "dct": 0.975,
    "phash": 1 - USUAL_BITS / 32,
    "imagehash phash": 1 - USUAL_BITS / 32,
    "imagehash dhash": 1 - USUAL_BITS / 32,
}


class Found(NamedTuple):
    """What a descriptor finds on a set."""

    rate: float
    threshold: float
    recall: float
    by_transform: dict[str, float]


def main() -> int:
    """Describe, compare, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="the folder of the two Parquet files")
    arguments = parser.parse_args()
    try:
        compete(arguments.data.absolute())
    except (MissingError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(data: Path) -> None:
    """One round of both programs, and the tables of what they made.

    Raises:
        MissingError: the data are not there.
        ProgramError: a program failed.
    """
    for file, _ in SETS.values():
        if not (data / file).is_file():
            raise MissingError(f"{data / file}: not there; this benchmark needs the shared data beside the checkout")
    with scratch(CACHE) as place:
        done = interleave([ours(data, place), imagehash(data, place)], 1, warm_up=False)
        tables, usual, images = {}, {}, {}
        for name in SETS:
            arrays = described(place, name)
            kept = distinct(arrays["thumbnail"])
            images[name] = {
                "compared": int(kept.sum()),
                "comparisons": int(kept.sum() * (kept.sum() - 1) // 2),
                "copied": COPIED,
            }
            tables[name] = {descriptor: recall(arrays, descriptor, kept) for descriptor in USUAL}
            usual[name] = {descriptor: at_usual(arrays, descriptor, kept) for descriptor in USUAL}
            show(name, images[name], tables[name], usual[name])
    targets = [lead(name, tables[name]) for name in SETS]
    facts = {name: {d: [found._asdict() for found in table] for d, table in tables[name].items()} for name in SETS}
    print(
        write(
            "descriptors",
            done,
            targets,
            is_full=data == SHARED_DATA,
            images=images,
            usual_threshold=usual,
            recall=facts,
        )
    )


def ours(data: Path, place: Path) -> Program:
    """The descriptors of altalign."""
    files = [f"{name}={data / file}={learned}={COPIED}" for name, (file, learned) in SETS.items()]
    return Program("altalign", [str(OURS), "-m", "benchmarks.our_descriptors", str(place), *files], says=last_json)


def imagehash(data: Path, place: Path) -> Program:
    """The descriptors of imagehash, of the same images."""
    files = [f"{name}={data / file}={COPIED}" for name, (file, _) in SETS.items()]
    return Program("imagehash", [str(PEERS), "-m", "benchmarks.peer_descriptors", str(place), *files], says=last_json)


def described(place: Path, name: str) -> dict[str, npt.NDArray[np.integer]]:
    """The arrays of both programs: vectors by descriptor."""
    own, peer = np.load(place / f"{name}.npz"), np.load(place / f"{name}-imagehash.npz")
    return {key: own[key] for key in own.files} | {f"imagehash {key}": peer[key] for key in peer.files}


def distinct(thumbnails: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Which images to compare: the first of each group of similar ones (transitively)."""
    values = thumbnails.reshape(len(thumbnails), -1).astype(np.float64)
    values = unit(values - values.mean(axis=1, keepdims=True))
    first = np.arange(len(values))
    for i in range(len(values)):
        for j in np.flatnonzero(values[i + 1 :] @ values[i] > ALIKE_ABOVE) + i + 1:
            low, high = sorted((first[i], first[j]))
            first[first == high] = low
    return first == np.arange(len(values))


def unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Vectors of length 1; zeros stay so."""
    lengths = np.sqrt((values**2).sum(axis=-1, keepdims=True))
    return values / np.where(lengths > 0, lengths, 1.0)


def unrelated(vectors: npt.NDArray[np.integer], *, at_most: int) -> npt.NDArray[np.float64]:
    """The greatest cosines of all pairs, falling; at least so many."""
    values, greatest = unit(vectors.astype(np.float64)), np.zeros(0)
    for begin in range(0, len(values), ROWS_AT_A_TIME):
        block = values[begin : begin + ROWS_AT_A_TIME] @ values[begin:].T
        pairs = block[np.triu_indices(len(block), 1, block.shape[1])]
        greatest = np.sort(np.concatenate([greatest, pairs]))[::-1][:at_most]
    return greatest


def of_copies(arrays: Mapping[str, npt.NDArray[np.integer]], descriptor: str) -> npt.NDArray[np.float64]:
    """Cosine of each copy with its original, (images, transforms)."""
    originals = unit(arrays[descriptor][:COPIED].astype(np.float64))
    return (unit(arrays[f"{descriptor}_copies"].astype(np.float64)) * originals[:, np.newaxis]).sum(axis=2)


def recall(arrays: Mapping[str, npt.NDArray[np.integer]], descriptor: str, kept: npt.NDArray[np.bool_]) -> list[Found]:
    """Recall at each false positive rate, at the smallest threshold that no larger share of unrelated pairs exceeds."""
    comparisons = int(kept.sum() * (kept.sum() - 1) // 2)
    pairs = unrelated(arrays[descriptor][kept], at_most=int(max(RATES) * comparisons) + 1)
    found = []
    for rate in RATES:
        threshold = pairs[int(rate * comparisons)] + 1e-12
        is_found = of_copies(arrays, descriptor) > threshold
        by_transform = dict(zip(TRANSFORMS, is_found.mean(axis=0).tolist(), strict=True))
        found.append(Found(rate, float(threshold), float(is_found.mean()), by_transform))
    return found


def at_usual(arrays: Mapping[str, npt.NDArray[np.integer]], descriptor: str, kept: npt.NDArray[np.bool_]) -> Figures:
    """Recall and rate of false positives at the threshold that a descriptor is usually used with."""
    threshold = USUAL[descriptor] - 1e-12  # equal distances have cosines that differ by rounding
    values = unit(arrays[descriptor][kept].astype(np.float64))
    above = sum(int((values[i + 1 :] @ values[i] >= threshold).sum()) for i in range(len(values)))
    comparisons = len(values) * (len(values) - 1) // 2
    return {
        "recall": float((of_copies(arrays, descriptor) >= threshold).mean()),
        "false_positives": above,
        "rate": above / comparisons,
    }


def lead(name: str, table: Mapping[str, list[Found]]) -> Figures:
    """The target: dct ahead of each of the others at the smallest rate."""
    at = len(RATES) - 1
    best = max(found[at].recall for descriptor, found in table.items() if descriptor != "dct")
    return target(
        f"recall of dct above the best other's, {name}, {RATES[at]:g} false positives a comparison",
        table["dct"][at].recall - best,
        at_least=0.01,
    )


def show(name: str, images: Figures, table: Mapping[str, list[Found]], usual: Mapping[str, Figures]) -> None:
    """Print both tables of a set, as Markdown."""
    print(
        f"\n{name}: {images['compared']:,} images, {images['comparisons']:,} pairs; {images['copied']} x "
        f"{len(TRANSFORMS)} copies\n"
    )
    print(
        f"| descriptor | {' | '.join(f'recall at {rate:g} (threshold)' for rate in RATES)} | recall at its usual "
        "threshold | false positives there |"
    )
    print("|---" * (3 + len(RATES)) + "|")
    for descriptor, found in table.items():
        cells = [f"{one.recall:.3f} ({one.threshold:.3f})" for one in found]
        print(
            f"| {descriptor} | {' | '.join(cells)} | {usual[descriptor]['recall']:.3f} | "
            f"{usual[descriptor]['rate']:.1e} |"
        )
    print(f"\n| transform, at {RATES[-1]:g} | {' | '.join(table)} |\n" + "|---" * (1 + len(table)) + "|")
    for transform in TRANSFORMS:
        print(f"| {transform} | {' | '.join(f'{found[-1].by_transform[transform]:.2f}' for found in table.values())} |")


if __name__ == "__main__":
    sys.exit(main())
