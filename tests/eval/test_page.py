from pathlib import Path

import numpy as np

from altalign.eval.classification import measured
from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.eval.image_sources import Images
from altalign.eval.outcomes import Difference, Result
from altalign.eval.results import Compared, write, write_comparison
from altalign.eval.settings import Set

OUTCOMES = {"label": np.array([0, 0, 1, 1]), "rank": np.array([1, 2, 1, 1])}


def evaluated() -> Evaluated:
    images = Images(list("abcd"), [f"<script>alert({name})</script>" for name in "abcd"])
    result = Result(images, range(4), OUTCOMES, measured(OUTCOMES), {"images": 4}, {"no label": ["a", "<b>"]})
    return Evaluated(Set(task="zero_shot", name="a&b", path="x"), result, {"top1": (10.0, 90.0)}, [])


def test_a_page_loads_and_runs_nothing_and_escapes_names(tmp_path: Path) -> None:
    write(str(tmp_path), Evaluation([evaluated()], {"knn/lost": "nothing is at <there>"}), model="run <x>")
    text = (tmp_path / "eval.html").read_text()
    assert not any(tag in text for tag in ("<script", "<link", "<img", "src="))
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    for words in (
        "1 of 2 sets",
        "nothing is at &lt;there&gt;",
        "run &lt;x&gt;",
        "zero_shot/a&amp;b",
        "75.00",
        "10.0 to 90.0",
        "Left out: 2, no label (a, &lt;b&gt;)",
    ):
        assert words in text


def test_two_models_are_shown_with_their_difference(tmp_path: Path) -> None:
    of = {"top1": Difference(-2.5, -4.0, -1.0, 0.004)}
    compared = [Compared("knn/x", "top1", 90, 3, {"top1": 40.0}, {"top1": 42.5}, of)]
    write_comparison(str(tmp_path), compared, a="A", b="<B>")
    text = (tmp_path / "comparison.html").read_text()
    for words in ("-2.5", "-4.0 to -1.0", "0.004", "&lt;B&gt;", "Rows: 90; 3 more"):
        assert words in text
