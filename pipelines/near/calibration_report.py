"""What a calibration reports: a table and sentences, for the terminal and for its page.

Nothing in it depends on the machine or the time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from altalign.pipelines.images.calibration_files import Calibration
from altalign.terminal import many, shown

PAGE = "report.html"


class Looked(NamedTuple):
    """A pair to look at."""

    cosine: float
    key: str  # of the pool's image
    test_set: str
    test_image: str
    of_pool: bytes  # WebP
    of_test: bytes


class Findings(NamedTuple):
    """What a calibration found: its files, what `calibration.json` says of it, and the pairs around the threshold."""

    calibration: Calibration
    facts: Mapping[str, Any]
    looked_at: Sequence[Looked]  # the greatest cosine first


def sentences(findings: Findings) -> Iterator[str]:
    """What is to be known beside the table of recall."""
    facts, threshold = findings.facts, findings.calibration.similarity_above
    pairs, decoys, tests = facts["test_images_found"], facts["decoys_found"], sum(facts["test_sets"].values())
    beyond = " That is extrapolated: a line through more frequent ones, no count." * facts["is_extrapolated"]
    yield f"Threshold: a cosine above {threshold:g}."
    yield (
        f"Expected false positives: {facts['false_positives_expected']:.2g} a pool image, "
        f"{facts['false_positives_at_most']:g} allowed, for {many(tests - facts['flat_test_images'], 'test image')} in "
        f"{many(facts['views'], 'view')}.{beyond}"
    )
    yield (
        f"Counted: {pairs['above']:,} of {pairs['comparisons']:,} pairs of {facts['pool_images']:,} pool images and "
        f"test images are above it, true near-duplicates among them ({facts['taken_for_copies']:,} taken for such); "
        f"of {decoys['comparisons']:,} pairs with mirrored test images, {decoys['above']:,}."
    )
    yield (
        f"Flat images are never compared: {facts['flat_test_images']:,} of {many(tests, 'test image')}; of the pool "
        f"{facts['flat_pool_images']:,} were passed over."
    )
    if labelled := facts["labelled_pairs"]:
        left_out, by_how = labelled["left_out"], labelled["by_how"].items()
        broken = f"; {many(left_out, 'pair')} left out: an image cannot be decoded" if left_out else ""
        yield f"Labelled pairs: recall {_share(labelled['recall'])}; precision {_share(labelled['precision'])}{broken}."
        if lost := [f"{how} {of['found']} of {of['asked']}" for how, of in by_how if of["found"] < of["asked"]]:
            yield f"Not all found of: {', '.join(lost)}."


def _share(of: Mapping[str, Any]) -> str:
    if not of["asked"]:
        return "unknown (none)"
    least, most, share = of["least"], of["most"], of["found"] / of["asked"]
    return f"{of['found']:,} of {of['asked']:,} ({share:.1%}, 95 % interval {least:.1%} to {most:.1%})"


def verdict(findings: Findings) -> str:
    """The sentence that keeps anybody from believing that crops are covered."""
    recall, lost = findings.facts["recall"], findings.facts["not_covered"]
    if not lost:
        return "Of every kind of copies at least half are found."
    names = ", ".join(f"{name} ({recall[name]['found'] / recall[name]['asked']:.0%})" for name in lost)
    return (
        f"NOT COVERED, fewer than half of the copies are found: {names}. Such copies of test images stay in the data."
    )


def recall_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Name, hits, total, recall and interval of each kind of copies, in words, the worst first."""
    return [
        (
            name,
            f"{of['found']:,}",
            f"{of['asked']:,}",
            f"{of['found'] / of['asked']:.1%}",
            f"{of['least']:.1%} to {of['most']:.1%}",
        )
        for name, of in findings.facts["recall"].items()
    ]


def show(findings: Findings, console: Console) -> None:
    """Print recall by transform, the worst first; then what else is to be known."""
    facts, table = findings.facts, Table("copies")
    trained = f"{facts['training_images']:,} training images made the map; " if facts["training_images"] else ""
    console.print(f"{trained}copies of {facts['copied']:,} others were looked for:")
    for name in ("found", "of", "recall", "95 % interval"):
        table.add_column(name, justify="right")
    for row in recall_rows(findings):
        table.add_row(*row, style="red" if row[0] in facts["not_covered"] else None)
    console.print(table)
    for sentence in sentences(findings):
        console.print(shown(sentence))
    console.print(shown(verdict(findings)), style="bold red" if facts["not_covered"] else None)
