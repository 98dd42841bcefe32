"""What a calibration reports: facts as JSON, curves as CSV, a table on the terminal, and the contents of a page.

Nothing in it depends on the machine or the time. `altalign.audit.report.calibration` lays the page out.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from altalign import cli, storage
from altalign.calibration_page import Curve, Looked, Page, Recall
from altalign.curation import DecontaminateSettings
from altalign.dedup import thresholds as measures
from altalign.dedup.thresholds import PER_UNIT, CosineHistogram, Line, Share
from altalign.pipelines.calibrate.labelled_pairs import Labelled
from altalign.pipelines.images.calibration_files import Calibration
from altalign.terminal import shown

REPORT, CURVES = "report.html", "curves.csv"
COVERED_FROM = 0.5  # recall; below it a kind of copies is called not covered
_STEP = PER_UNIT // 400  # between thresholds of curves


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a calibration measured.

    Attributes:
        calibration: with the threshold that was chosen.
        test_sets: images of each test set.
        flat_test_images: those without an embedding.
        views: of each test image that the search looks at: 1, or 2 with the mirrored one.
        budget: false positives a pool image that were allowed.
        pool_images: that were searched for.
        flat_pool_images: passed over on the way, having no embedding.
        repeated_images: passed over for copies, having the bytes of an image before them.
        training_images: images whose copies the map was learned from; 0 without a map.
        copied: images whose copies were looked for.
        transforms: of each copy.
        cosines: of each copy with its original; nan where it has no embedding, or they share no bucket.
        above_without_bucket: copies that are above the threshold and were lost for want of a bucket.
        found: of the pool with test images.
        taken_for_copies: how many of these pairs are too near, and too many beside decoys, to be false positives; the
        line goes without them.
        decoys: of the pool with mirrored test images.
        line: of the rate of false positives.
        line_of_decoys: None where there are too few of them.
        labelled: what was measured on labelled pairs.
        looked_at: the pairs nearest to the threshold, the greatest cosine first.
    """

    calibration: Calibration
    test_sets: dict[str, int]
    flat_test_images: int
    views: int
    budget: float
    pool_images: int
    flat_pool_images: int
    repeated_images: int
    training_images: int
    copied: int
    transforms: Sequence[str]
    cosines: np.ndarray
    above_without_bucket: int
    found: CosineHistogram
    taken_for_copies: int
    decoys: CosineHistogram
    line: Line
    line_of_decoys: Line | None
    labelled: Labelled | None
    looked_at: Sequence[Looked]

    @property
    def threshold(self) -> float:
        """The cosine above which is a near-duplicate."""
        return self.calibration.similarity_above

    @property
    def test_images(self) -> int:
        """How many test images are searched for."""
        return sum(self.test_sets.values()) - self.flat_test_images

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
        lines = [self.line, *([self.line_of_decoys] if self.line_of_decoys else [])]
        return max(
            measures.false_positives_per_image(line, threshold, test_images=self.test_images, views=self.views)
            for line in lines
        )

    @property
    def is_extrapolated(self) -> bool:
        """Whether the rate at the threshold is below all that the line was fitted through."""
        return self.line.is_extrapolated(self.threshold)

    def facts(self) -> dict[str, object]:
        """For `calibration.json`: whole numbers as they are, others to six digits."""
        return {
            "clusters": len(self.calibration.centroids),
            "training_images": self.training_images,
            "copied": self.copied,
            "pool_images": self.pool_images,
            "flat_pool_images": self.flat_pool_images,
            "repeated_images": self.repeated_images,
            "test_sets": self.test_sets,
            "flat_test_images": self.flat_test_images,
            "views": self.views,
            "false_positives_at_most": self.budget,
            "false_positives_expected": _short(self.expected(self.threshold)),
            "is_extrapolated": self.is_extrapolated,
            "recall": {name: _of_share(share) for name, share in self.recall.items()},
            "not_covered": self.not_covered,
            "above_without_bucket": self.above_without_bucket,
            "taken_for_copies": self.taken_for_copies,
            "test_images_found": _of_rate(self.found, self.line, self.threshold),
            "decoys_found": _of_rate(self.decoys, self.line_of_decoys, self.threshold),
            "labelled_pairs": _of_labelled(self.labelled) if self.labelled else None,
        }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _of_share(share: Share) -> dict[str, object]:
    least, most = share.interval()
    return {"found": share.found, "asked": share.asked, "least": _short(least), "most": _short(most)}


def _of_rate(histogram: CosineHistogram, line: Line | None, threshold: float) -> dict[str, object]:
    fitted = (
        {name: _short(getattr(line, name)) for name in ("slope", "intercept", "fitted_from", "fitted_to")}
        if line
        else None
    )
    return {"above": histogram.above(threshold).found, "comparisons": histogram.comparisons, "line": fitted}


def _of_labelled(labelled: Labelled) -> dict[str, object]:
    by_how = {how: _of_share(share) for how, share in labelled.by_how.items()}
    return {
        "recall": _of_share(labelled.recall),
        "precision": _of_share(labelled.precision),
        "by_how": by_how,
        "left_out": labelled.left_out,
    }


# Files ----------------------------------------------------------------------------------------------------------------


def files_of(folder: str) -> list[str]:
    """The files that `write` writes."""
    return [storage.join(folder, name) for name in (REPORT, CURVES)]


def write(findings: Findings, folder: str) -> None:
    """Write the report and the curves."""
    rows = list(_curves(findings))
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    storage.write_bytes(storage.join(folder, CURVES), text.getvalue().encode())
    cli.call(cli.CALIBRATION_PAGE, _page(findings, rows, storage.join(folder, REPORT)))


def _curves(findings: Findings) -> Iterator[dict[str, object]]:
    """A row a threshold: what was counted, what the line says, and recall by transform."""
    for threshold in findings.found.thresholds()[:-1:_STEP].tolist():
        found, decoys = findings.found.above(threshold), findings.decoys.above(threshold)
        recall = measures.recall_by_transform(findings.transforms, findings.cosines, similarity_above=threshold)
        yield {
            "similarity_above": threshold,
            "pairs_above": found.found,
            "comparisons": found.asked,
            "decoys_above": decoys.found,
            "comparisons_with_decoys": decoys.asked,
            "rate_fitted": f"{findings.line.rate(threshold):.6g}",
            "is_extrapolated": findings.line.is_extrapolated(threshold),
            "false_positives_expected": f"{findings.expected(threshold):.6g}",
            **{f"recall {name}": f"{share.value:.6g}" for name, share in recall.items()},
        }


# Words ----------------------------------------------------------------------------------------------------------------


def _sentences(findings: Findings) -> list[str]:
    """What is to be known beside the table of recall."""
    tests = sum(findings.test_sets.values())
    rate, decoys = findings.found.above(findings.threshold), findings.decoys.above(findings.threshold)
    beyond = " That is extrapolated: a line through more frequent ones, no count." if findings.is_extrapolated else ""
    said = [
        f"Threshold: a cosine above {findings.threshold:g}.",
        f"Expected false positives: {findings.expected(findings.threshold):.2g} a pool image, {findings.budget:g} "
        f"allowed, for {_many(findings.test_images, 'test image')} in {_many(findings.views, 'view')}.{beyond}",
        f"Counted: {rate.found:,} of {rate.asked:,} pairs of {findings.pool_images:,} pool images and test images are "
        f"above it, true near-duplicates among them; of {findings.decoys.comparisons:,} pairs with mirrored test "
        f"images, {decoys.found:,}.",
        f"Flat images are never compared: {findings.flat_test_images:,} of {_many(tests, 'test image')}; "
        f"of the pool {findings.flat_pool_images:,} were passed over.",
    ]
    said += _beside_the_default(findings)
    if findings.taken_for_copies:
        said.append(
            "Taken for true near-duplicates, and not counted against the threshold: "
            f"{_many(findings.taken_for_copies, 'pair')}."
        )
    if findings.above_without_bucket:
        said.append(
            f"Lost for want of a common bucket: {_many(findings.above_without_bucket, 'copy', 'copies')} above the "
            "threshold."
        )
    if findings.labelled:
        said += _of_pairs(findings.labelled)
    return said


def _beside_the_default(findings: Findings) -> Iterator[str]:
    """What this threshold changes for those who have not calibrated."""
    default = DecontaminateSettings().similarity_above
    of_default, chosen = (findings.found.above(threshold).found for threshold in (default, findings.threshold))
    if findings.threshold > default:
        between = _many(of_default - chosen, "pair")
        yield f"Stricter than {default:g}, the default: {between} between the two would stay in the data; look at them."
    elif findings.threshold < default:
        yield f"Wider than {default:g}, the default: {_many(chosen - of_default, 'pair')} more between the two."


def _of_pairs(labelled: Labelled) -> Iterator[str]:
    left_out = f"; {_many(labelled.left_out, 'pair')} left out: an image cannot be decoded" if labelled.left_out else ""
    yield f"Labelled pairs: recall {_share(labelled.recall)}; precision {_share(labelled.precision)}{left_out}."
    lost = [
        f"{how} {share.found} of {share.asked}" for how, share in labelled.by_how.items() if share.found < share.asked
    ]
    if lost:
        yield f"Not all found of: {', '.join(lost)}."


def _verdict(findings: Findings) -> str:
    """The sentence that keeps anybody from believing that crops are covered."""
    if not findings.not_covered:
        return "Of every kind of copies at least half are found."
    names = ", ".join(f"{name} ({findings.recall[name].value:.0%})" for name in findings.not_covered)
    return (
        f"NOT COVERED, fewer than half of the copies are found: {names}. Such copies of test images stay in the data."
    )


def _share(share: Share) -> str:
    if not share.asked:
        return "unknown (none)"
    least, most = share.interval()
    return f"{share.found:,} of {share.asked:,} ({share.value:.1%}, 95 % interval {least:.1%} to {most:.1%})"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def show(findings: Findings, out: str, console: Console) -> None:
    """Recall by transform, the worst first; then what else is to be known."""
    trained = f"{findings.training_images:,} training images made the map; " if findings.training_images else ""
    console.print(f"{trained}copies of {findings.copied:,} others were looked for:")
    table = Table()
    table.add_column("copies")
    for name in ("found", "of", "recall", "95 % interval"):
        table.add_column(name, justify="right")
    for name, share in findings.recall.items():
        least, most = share.interval()
        style = "red" if name in findings.not_covered else None
        table.add_row(
            name,
            f"{share.found:,}",
            f"{share.asked:,}",
            f"{share.value:.1%}",
            f"{least:.1%} to {most:.1%}",
            style=style,
        )
    console.print(table)
    for sentence in _sentences(findings):
        console.print(shown(sentence))
    console.print(shown(_verdict(findings)), style="bold red" if findings.not_covered else None)
    console.print(
        f'to use it: [decontaminate] calibration = "{shown(out)}"; '
        f"curves and pairs to look at: {shown(storage.join(out, REPORT))}",
        soft_wrap=True,
    )


# The page -------------------------------------------------------------------------------------------------------------


def _page(findings: Findings, rows: Sequence[dict[str, Any]], path: str) -> Page:
    thresholds = [row["similarity_above"] for row in rows]
    fitted = [(at, findings.line.rate(at)) for at in thresholds]
    counted = [row["pairs_above"] / row["comparisons"] for row in rows]
    mirrored = [row["decoys_above"] / max(1, row["comparisons_with_decoys"]) for row in rows]
    rates = [
        Curve("counted", "counted", list(zip(thresholds, counted, strict=True)), is_dotted=True),
        Curve("mirrored", "mirrored", list(zip(thresholds, mirrored, strict=True)), is_dotted=True),
        Curve("fitted", "fitted", [point for point in fitted if not findings.line.is_extrapolated(point[0])]),
        Curve("extrapolated", "extrapolated", [point for point in fitted if findings.line.is_extrapolated(point[0])]),
    ]
    recall = [
        Recall(name, share.found, share.asked, share.value, *share.interval(), name not in findings.not_covered)
        for name, share in findings.recall.items()
    ]
    recalls = [
        Curve(
            share.name,
            "covered" if share.is_covered else "lost",
            [(row["similarity_above"], float(row[f"recall {share.name}"])) for row in rows],
        )
        for share in recall
    ]
    return Page(
        path=path,
        embedder=findings.calibration.embedder,
        threshold=findings.threshold,
        verdict=_verdict(findings),
        sentences=_sentences(findings),
        test_sets=findings.test_sets,
        copied=findings.copied,
        recall=recall,
        rates=rates,
        allowed_rate=findings.budget / (findings.test_images * findings.views),
        recalls=recalls,
        covered_from=COVERED_FROM,
        looked_at=findings.looked_at,
    )
