"""What a calibration says: a report of one file that needs no network, curves as CSV, facts as JSON, and a table on the terminal.

Nothing in it is of the machine or of the time. Every string that came from elsewhere is escaped.
"""

import base64
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.curation import DecontaminateSettings
from altalign.dedup import thresholds as measures
from altalign.dedup.thresholds import PER_UNIT, CosineHistogram, Line, Share
from altalign.pipelines.calibrate.figures import Curve, figure
from altalign.pipelines.calibrate.labelled_pairs import Labelled
from altalign.pipelines.images.calibration_files import Calibration
from altalign.terminal import shown

REPORT, CURVES = "report.html", "curves.csv"
COVERED_FROM = 0.5  # recall; below it a kind of copies is called not covered
_STEP = PER_UNIT // 400  # between thresholds of curves


@dataclass(frozen=True)
class Looked:
    """A pair to look at: cosine, the image of the pool by its key, the test image by its set and name, and both as small JPEGs."""

    cosine: float
    key: str
    test_set: str
    test_image: str
    of_pool: bytes
    of_test: bytes


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
        lessons: images whose copies the map was learned from; 0 without a map.
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
    lessons: int
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
        """Those that are searched for."""
        return sum(self.test_sets.values()) - self.flat_test_images

    @cached_property
    def recall(self) -> dict[str, Share]:
        """By transform, at the threshold; the worst first."""
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

    def facts(self) -> dict[str, Any]:
        """For `calibration.json`: whole numbers as they are, others to six digits."""
        return {
            "clusters": len(self.calibration.centroids),
            "lessons": self.lessons,
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


def _of_share(share: Share) -> dict[str, Any]:
    least, most = share.interval()
    return {"found": share.found, "asked": share.asked, "least": _short(least), "most": _short(most)}


def _of_rate(histogram: CosineHistogram, line: Line | None, threshold: float) -> dict[str, Any]:
    fitted = (
        {name: _short(getattr(line, name)) for name in ("slope", "intercept", "fitted_from", "fitted_to")}
        if line
        else None
    )
    return {"above": histogram.above(threshold).found, "comparisons": histogram.comparisons, "line": fitted}


def _of_labelled(labelled: Labelled) -> dict[str, Any]:
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
    storage.write_bytes(storage.join(folder, REPORT), "".join(_page(findings, rows)).encode())


def _curves(findings: Findings) -> Iterator[dict[str, Any]]:
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
    rate = findings.found.above(findings.threshold)
    beyond = " That is extrapolated: a line through more frequent ones, no count." if findings.is_extrapolated else ""
    said = [
        f"Threshold: a cosine above {findings.threshold:g}.",
        f"Expected false positives: {findings.expected(findings.threshold):.2g} a pool image, {findings.budget:g} allowed, for "
        f"{findings.test_images:,} test images in {_many(findings.views, 'view')}.{beyond}",
        f"Counted: {rate.found:,} of {rate.asked:,} pairs of {findings.pool_images:,} pool images and test images are above it, true near-duplicates "
        f"among them; of {findings.decoys.comparisons:,} pairs with mirrored test images, {findings.decoys.above(findings.threshold).found:,}.",
        f"Flat images are never compared: {findings.flat_test_images:,} of {tests:,} test images; of the pool {findings.flat_pool_images:,} were passed over.",
    ]
    said += _beside_the_default(findings)
    if findings.taken_for_copies:
        said.append(
            f"Taken for true near-duplicates, and not counted against the threshold: {_many(findings.taken_for_copies, 'pair')}."
        )
    if findings.above_without_bucket:
        said.append(
            f"Lost for want of a common bucket: {_many(findings.above_without_bucket, 'copy', 'copies')} above the threshold."
        )
    if findings.labelled:
        said += _of_pairs(findings.labelled)
    return said


def _beside_the_default(findings: Findings) -> Iterator[str]:
    """What this threshold changes for those who have not calibrated."""
    default = DecontaminateSettings().similarity_above
    of_default, chosen = (findings.found.above(threshold).found for threshold in (default, findings.threshold))
    if findings.threshold > default:
        yield f"Stricter than {default:g}, the default: {_many(of_default - chosen, 'pair')} between the two would stay in the data; look at them."
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
    lessons = f"{findings.lessons:,} images taught the map; " if findings.lessons else ""
    console.print(f"{lessons}copies of {findings.copied:,} others were looked for:")
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
        f'to use it: [decontaminate] calibration = "{shown(out)}"; curves and pairs to look at: {shown(storage.join(out, REPORT))}',
        soft_wrap=True,
    )


# The page -------------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: 0.1em 0.8em; text-align: right } td:first-child, th:first-child { text-align: left }
.lost { color: #b00 } .verdict { border-left: 4px solid #b00; padding: 0.5em 1em; font-weight: bold } .bar { width: 20em; text-align: left }
.bar span { display: block; height: 0.8em; background: #47a } .lost .bar span { background: #b00 }
.pairs { display: flex; flex-wrap: wrap; gap: 1em } figure { margin: 0; width: 270px; font-size: 12px; overflow-wrap: anywhere }
figure img { max-width: 130px } svg { max-width: 100%; height: auto }
@media (max-width: 40em) { body { margin: 1em auto } table { font-size: 12px } td, th { padding: 0.1em 0.3em; white-space: nowrap } .bar { display: none } }
"""


def _page(findings: Findings, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
    yield f"<title>Calibration</title>\n<style>{_STYLE}</style>\n"
    yield f"<h1>Calibration of <code>{escape(findings.calibration.embedder)}</code></h1>\n"
    yield f'<p class="verdict">{escape(_verdict(findings))}</p>\n<ul>\n'
    yield "".join(f"<li>{escape(sentence)}</li>\n" for sentence in _sentences(findings))
    yield "</ul>\n<h2>Test sets</h2>\n<table><tr><th>name</th><th>images</th></tr>\n"
    yield "".join(f"<tr><td>{escape(name)}</td><td>{count:,}</td></tr>\n" for name, count in findings.test_sets.items())
    yield "</table>\n<h2>Copies found, by kind</h2>\n"
    yield f"<p>Of {findings.copied:,} images that the map was not learned from, 95 % intervals by Clopper and Pearson.</p>\n"
    yield "<table><tr><th>copies</th><th>found</th><th>of</th><th>recall</th><th>interval</th><th></th></tr>\n"
    for name, share in findings.recall.items():
        least, most = share.interval()
        cells = "".join(
            f"<td>{cell}</td>"
            for cell in (f"{share.found:,}", f"{share.asked:,}", f"{share.value:.1%}", f"{least:.1%} to {most:.1%}")
        )
        is_lost = ' class="lost"' if name in findings.not_covered else ""
        yield f'<tr{is_lost}><td>{escape(name)}</td>{cells}<td class="bar"><span style="width:{share.value:.1%}"></span></td></tr>\n'
    yield "</table>\n"
    yield from _figures(findings, rows)
    yield f"<h2>The {len(findings.looked_at)} pairs nearest to the threshold</h2>\n"
    yield "<p>Left the image of the pool, right the test image. Above the threshold the first is dropped.</p>\n"
    for title, is_above in (("Above: dropped, where they share a bucket", True), ("At it or below: kept", False)):
        pairs = [pair for pair in findings.looked_at if (pair.cosine > findings.threshold) == is_above]
        yield f'<h3>{title}</h3>\n<div class="pairs">\n{"".join(map(_pair, pairs))}</div>\n'


def _figures(findings: Findings, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    x = [row["similarity_above"] for row in rows]
    fitted = [findings.line.rate(threshold) for threshold in x]
    is_beyond = [bool(row["is_extrapolated"]) for row in rows]
    allowed = findings.budget / (findings.test_images * findings.views)
    yield "<h2>False positives a comparison</h2>\n<p>Counted among the pool's pairs with test images (true near-duplicates bend the end upwards), and with "
    yield "mirrored ones, which nothing should be near to. The line is fitted; dashed, it is extrapolated.</p>\n"
    yield figure(
        [
            Curve("counted", x, [row["pairs_above"] / row["comparisons"] for row in rows], "#47a", is_dotted=True),
            Curve(
                "mirrored",
                x,
                [row["decoys_above"] / max(1, row["comparisons_with_decoys"]) for row in rows],
                "#c80",
                is_dotted=True,
            ),
            Curve("fitted", *_only(x, fitted, [not beyond for beyond in is_beyond]), "#222"),
            Curve("extrapolated", *_only(x, fitted, is_beyond), "#222", is_dashed=True),
        ],
        at=findings.threshold,
        level=allowed,
        is_log=True,
    )
    yield "<h2>Recall</h2>\n<p>Of every kind of copies, by threshold. Point at a curve for its name.</p>\n"
    names = list(findings.recall)
    yield figure(
        [
            Curve(
                name,
                x,
                [float(row[f"recall {name}"]) for row in rows],
                "#b00" if name in findings.not_covered else "#47a",
            )
            for name in names
        ],
        at=findings.threshold,
        level=COVERED_FROM,
        is_log=False,
    )


def _only(x: Sequence[float], y: Sequence[float], mask: Sequence[bool]) -> tuple[list[float], list[float]]:
    return [a for a, keep in zip(x, mask, strict=True) if keep], [b for b, keep in zip(y, mask, strict=True) if keep]


def _pair(pair: Looked) -> str:
    sides = "".join(
        f'<img alt="" src="data:image/webp;base64,{base64.b64encode(side).decode()}">'
        for side in (pair.of_pool, pair.of_test)
    )
    return (
        f"<figure>{sides}<figcaption>{pair.cosine:.4f}<br>{escape(pair.key)}<br>"
        f"{escape(shown(pair.test_set))}: {escape(shown(pair.test_image))}</figcaption></figure>\n"
    )
