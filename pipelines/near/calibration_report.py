"""What a calibration reports: facts as JSON, a table on the terminal, and sentences.

Nothing in it depends on the machine or the time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from altalign.dedup import thresholds as measures
from altalign.dedup.thresholds import Comparisons, Line, Share
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near.comparing import Labelled
from altalign.settings.curate import DecontaminateSettings
from altalign.terminal import many, shown

PAGE = "report.html"
COVERED_FROM = 0.5  # recall; below it a kind of copies is called not covered


class Looked(NamedTuple):
    """A pair to look at."""

    cosine: float
    key: str  # of the pool's image
    test_set: str
    test_image: str
    of_pool: bytes  # WebP
    of_test: bytes


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a calibration measured."""

    calibration: Calibration  # with the threshold that was chosen
    counts: Mapping[str, Any]  # what `calibration.json` has of images and settings, under the same names
    transforms: Sequence[str]  # of each copy
    cosines: np.ndarray  # of each copy with its original; nan: it has no embedding, or they share no bucket
    pairs: Comparisons  # of the pool with test images
    decoys: Comparisons  # of the pool with mirrored test images
    lines: Sequence[Line]  # of the rate of false positives, and of decoys where they are enough
    labelled: Labelled | None
    looked_at: Sequence[Looked]  # the pairs nearest to the threshold, the greatest cosine first

    @property
    def threshold(self) -> float:
        """The cosine above which is a near-duplicate."""
        return self.calibration.similarity_above

    @property
    def test_images(self) -> int:
        """How many test images are searched for."""
        return sum(self.counts["test_sets"].values()) - self.counts["flat_test_images"]

    @cached_property
    def recall(self) -> dict[str, Share]:
        """Recall of each transform at the threshold, the worst first."""
        shares = measures.recall_by_transform(self.transforms, self.cosines, similarity_above=self.threshold)
        return dict(sorted(shares.items(), key=lambda entry: entry[1].value))

    @property
    def not_covered(self) -> list[str]:
        """Transforms of whose copies fewer than half are found."""
        return [name for name, share in self.recall.items() if share.value < COVERED_FROM]

    def expected(self, threshold: float) -> float:
        """False positives of one pool image: by the line, and not below what decoys say."""
        return self.test_images * self.counts["views"] * max(float(line.rates(threshold)) for line in self.lines)

    def is_extrapolated(self, threshold: float) -> bool:
        """Whether the rate at a threshold is below all that the line was fitted through."""
        return bool(self.lines[0].rates(threshold) < self.lines[0].fitted_to)

    def facts(self) -> dict[str, object]:
        """For `calibration.json`: whole numbers as they are, others to six digits."""

        def short(value: float) -> float:
            return float(f"{value:.6g}")

        def of_share(share: Share) -> dict[str, object]:
            least, most = share.interval()
            return {"found": share.hits, "asked": share.total, "least": short(least), "most": short(most)}

        def of_rate(comparisons: Comparisons, line: Line | None) -> dict[str, object]:
            fitted = {name: short(value) for name, value in vars(line).items()} if line else None
            hits = comparisons.above(self.threshold).hits
            return {"above": hits, "comparisons": comparisons.compared, "line": fitted}

        labelled = self.labelled
        return {
            "clusters": len(self.calibration.centroids),
            **self.counts,
            "false_positives_expected": short(self.expected(self.threshold)),
            "is_extrapolated": self.is_extrapolated(self.threshold),
            "recall": {name: of_share(share) for name, share in self.recall.items()},
            "not_covered": self.not_covered,
            "test_images_found": of_rate(self.pairs, self.lines[0]),
            "decoys_found": of_rate(self.decoys, self.lines[1] if len(self.lines) > 1 else None),
            "labelled_pairs": labelled
            and {
                "recall": of_share(labelled.recall),
                "precision": of_share(labelled.precision),
                "by_how": {how: of_share(share) for how, share in labelled.by_how.items()},
                "left_out": labelled.left_out,
            },
        }


# Words ----------------------------------------------------------------------------------------------------------------


def sentences(findings: Findings) -> Iterator[str]:
    """What is to be known beside the table of recall."""
    counts, threshold = findings.counts, findings.threshold
    counted, decoys = findings.pairs.above(threshold), findings.decoys.above(threshold)
    beyond = ""
    if findings.is_extrapolated(threshold):
        beyond = " That is extrapolated: a line through more frequent ones, no count."
    yield f"Threshold: a cosine above {threshold:g}."
    yield (
        f"Expected false positives: {findings.expected(threshold):.2g} a pool image, "
        f"{counts['false_positives_at_most']:g} allowed, for {many(findings.test_images, 'test image')} in "
        f"{many(counts['views'], 'view')}.{beyond}"
    )
    yield (
        f"Counted: {counted.hits:,} of {counted.total:,} pairs of {counts['pool_images']:,} pool images and test "
        f"images are above it, true near-duplicates among them; of {decoys.total:,} pairs with mirrored test images, "
        f"{decoys.hits:,}."
    )
    yield (
        f"Flat images are never compared: {counts['flat_test_images']:,} of "
        f"{many(sum(counts['test_sets'].values()), 'test image')}; of the pool {counts['flat_pool_images']:,} were "
        "passed over."
    )
    default = DecontaminateSettings().similarity_above
    between = many(abs(counted.hits - findings.pairs.above(default).hits), "pair")
    if threshold > default:
        yield f"Stricter than {default:g}, the default: {between} between the two would stay in the data; look at them."
    elif threshold < default:
        yield f"Wider than {default:g}, the default: {between} more between the two."
    if counts["taken_for_copies"]:
        pairs = many(counts["taken_for_copies"], "pair")
        yield f"Taken for true near-duplicates, and not counted against the threshold: {pairs}."
    if counts["above_without_bucket"]:
        lost = many(counts["above_without_bucket"], "copy", "copies")
        yield f"Lost for want of a common bucket: {lost} above the threshold."
    if labelled := findings.labelled:
        left_out = (
            f"; {many(labelled.left_out, 'pair')} left out: an image cannot be decoded" if labelled.left_out else ""
        )
        yield f"Labelled pairs: recall {_share(labelled.recall)}; precision {_share(labelled.precision)}{left_out}."
        shares = labelled.by_how.items()
        if lost := [f"{how} {share.hits} of {share.total}" for how, share in shares if share.hits < share.total]:
            yield f"Not all found of: {', '.join(lost)}."


def verdict(findings: Findings) -> str:
    """The sentence that keeps anybody from believing that crops are covered."""
    if not findings.not_covered:
        return "Of every kind of copies at least half are found."
    names = ", ".join(f"{name} ({findings.recall[name].value:.0%})" for name in findings.not_covered)
    return (
        f"NOT COVERED, fewer than half of the copies are found: {names}. Such copies of test images stay in the data."
    )


def _share(share: Share) -> str:
    if not share.total:
        return "unknown (none)"
    least, most = share.interval()
    return f"{share.hits:,} of {share.total:,} ({share.value:.1%}, 95 % interval {least:.1%} to {most:.1%})"


def recall_rows(findings: Findings) -> list[tuple[str, str, str, str, str]]:
    """Name, hits, total, recall and interval of each kind of copies, in words, the worst first."""
    rows = list[tuple[str, str, str, str, str]]()
    for name, share in findings.recall.items():
        least, most = share.interval()
        rows.append((name, f"{share.hits:,}", f"{share.total:,}", f"{share.value:.1%}", f"{least:.1%} to {most:.1%}"))
    return rows


def show(findings: Findings, console: Console) -> None:
    """Print recall by transform, the worst first; then what else is to be known."""
    counts = findings.counts
    trained = f"{counts['training_images']:,} training images made the map; " if counts["training_images"] else ""
    console.print(f"{trained}copies of {counts['copied']:,} others were looked for:")
    table = Table()
    table.add_column("copies")
    for name in ("found", "of", "recall", "95 % interval"):
        table.add_column(name, justify="right")
    for row in recall_rows(findings):
        table.add_row(*row, style="red" if row[0] in findings.not_covered else None)
    console.print(table)
    for sentence in sentences(findings):
        console.print(shown(sentence))
    console.print(shown(verdict(findings)), style="bold red" if findings.not_covered else None)
