"""The page of a calibration: one HTML file that loads nothing and runs nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from altalign import storage
from altalign.audit.report import page
from altalign.pages import frame

_STYLES = ("page.css", "calibration.css")


def write(
    path: str,
    *,
    embedder: str,
    threshold: float,
    verdict: str,
    sentences: Sequence[str],
    test_sets: Mapping[str, int],
    copied: int,
    recall: Sequence[tuple[str, str, str, str, str]],
    not_covered: Sequence[str],
    looked_at: Sequence[Any],
) -> None:
    """Write the page.

    Args:
        path: the file.
        embedder: by the name that the setting gives it.
        threshold: the cosine above which a pair is a near-duplicate.
        verdict: what the calibration covers, in a sentence.
        sentences: further findings.
        test_sets: images of each test set.
        copied: images whose copies were searched for.
        recall: name, hits, total, recall and interval of each kind of copies, in words, the worst first.
        not_covered: the names of those that are lost.
        looked_at: the pairs nearest to the threshold, the greatest cosine first: `cosine`, `key`, `test_set`,
            `test_image`, and small WebP of both, `of_pool` and `of_test`.
    """
    style = page.joined(_STYLES)
    text = (
        page.environment()
        .get_template("calibration.html")
        .render(
            style=Markup(style),
            policy=frame.policy("", style),
            picture=frame.data_uri,
            embedder=embedder,
            threshold=threshold,
            verdict=verdict,
            sentences=sentences,
            test_sets=test_sets,
            copied=copied,
            recall=recall,
            not_covered=not_covered,
            looked_at=looked_at,
        )
    )
    storage.write_bytes(path, text.encode("utf-8", "backslashreplace"))
