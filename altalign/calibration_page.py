"""What the page of a calibration shows: pipelines measure it, the audit lays it out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Looked:
    """A pair to look at.

    Attributes:
        cosine: of its images.
        key: of the image of the pool.
        test_set: of the test image.
        test_image: its name in the set.
        of_pool: the image of the pool as a small WebP.
        of_test: the test image as a small WebP.
    """

    cosine: float
    key: str
    test_set: str
    test_image: str
    of_pool: bytes
    of_test: bytes


@dataclass(frozen=True)
class Recall:
    """How many copies of one kind were found, with the 95 % interval of their share."""

    name: str
    found: int
    asked: int
    value: float
    least: float
    most: float
    is_covered: bool


@dataclass(frozen=True)
class Curve:
    """Points over thresholds, drawn as a line or as dots; `kind` is a class of the style sheet."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]
    is_dotted: bool = False


@dataclass(frozen=True)
class Page:
    """The whole page.

    Attributes:
        path: the file that is written.
        embedder: by the name that the setting gives it.
        threshold: the cosine above which a pair is a near-duplicate.
        verdict: what the calibration covers, in a sentence.
        sentences: further findings.
        test_sets: images of each test set.
        copied: images whose copies were searched for.
        recall: by kind of copy, the worst first.
        rates: curves of false positives per comparison.
        allowed_rate: the false positives per comparison that were allowed.
        recalls: curves of recall.
        covered_from: recall below which a kind of copy is not covered.
        looked_at: the pairs nearest to the threshold, the greatest cosine first.
    """

    path: str
    embedder: str
    threshold: float
    verdict: str
    sentences: Sequence[str]
    test_sets: dict[str, int]
    copied: int
    recall: Sequence[Recall]
    rates: Sequence[Curve]
    allowed_rate: float
    recalls: Sequence[Curve]
    covered_from: float
    looked_at: Sequence[Looked]

    @property
    def is_covered(self) -> bool:
        """Whether every kind of copy is covered."""
        return all(share.is_covered for share in self.recall)
