import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from PIL import Image

from altalign.eval import page
from altalign.eval.classification import measured
from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.eval.image_sources import files_in
from altalign.eval.outcomes import Difference, Example, Result
from altalign.eval.results import Compared
from altalign.eval.settings import Set

NAMES = ("<script>alert(1)</script>", "kite", "ring")
LABELS, RANKS, PREDICTED = [0, 0, 1, 1, 2, 2, 2], [1, 2, 1, 1, 3, 2, 1], [0, 2, 1, 1, 0, 1, 2]


def evaluated(folder: Path) -> Evaluated:
    for number in range(len(LABELS)):
        Image.new("RGB", (40, 30), (30 * number, 90, 90)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    images, _ = files_in(str(folder), [*(f"{number}.png" for number in range(len(LABELS))), "broken.png"])
    outcomes = {"label": np.array(LABELS), "rank": np.array(RANKS), "predicted": np.array(PREDICTED)}
    examples = [Example(0, ("kite", "ring"), 1, "kite"), Example(7, (1, 2), 2), Example("a <b> kite", (3,), 2)]
    rows = list(range(len(LABELS)))
    result = Result(measured(outcomes), {"images": 7}, outcomes, rows, {"no label": ["a", "b"]}, examples, NAMES)
    return Evaluated(Set(task="zero_shot", name="a&b", path="x"), images, result, {"top1": (10.0, 90.0)}, [])


class Loaded(HTMLParser):
    """Whatever a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]


def test_classes_and_confusion_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    part = page._part(evaluated(tmp_path))  # pyright: ignore[reportPrivateUsage]
    found = {one.name: (one.right, one.images) for one in part.classes}
    for number, name in enumerate(NAMES):
        ranks = [rank for label, rank in zip(LABELS, RANKS, strict=True) if label == number]
        assert found[name] == (sum(rank == 1 for rank in ranks), len(ranks))
        for other in range(3):
            pairs = zip(LABELS, PREDICTED, strict=True)
            assert part.matrix[number][other] == sum(pair == (number, other) for pair in pairs)
    shares = [one.right / one.images for one in part.classes]
    assert shares == sorted(shares)
    assert sum(number for _, _, number in part.confused) == sum(
        label != guess for label, guess in zip(LABELS, PREDICTED, strict=True)
    )


def test_a_page_loads_and_runs_nothing_and_escapes_names(tmp_path: Path) -> None:
    found = Evaluation([evaluated(tmp_path)], {"knn/lost": "nothing is at <there>"})
    text = page.html(found, model="run <x>").decode()
    loaded = Loaded(text)
    assert "script" not in loaded.tags
    assert "link" not in loaded.tags
    assert all(source.startswith(("data:image/webp;base64,", "#")) for source in loaded.sources)
    assert sum(source.startswith("data:") for source in loaded.sources) == 4  # the fifth image does not decode
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    for words in (
        "1 of 2 sets",
        "nothing is at &lt;there&gt;",
        "run &lt;x&gt;",
        "zero_shot/a&amp;b",
        "Left out: 2, no label",
    ):
        assert words in text
    assert "alert(1)</script>" not in text


def test_two_models_are_shown_with_their_difference() -> None:
    of = {"top1": Difference(-2.5, -4.0, -1.0, 0.004)}
    text = page.comparison(
        [Compared("knn/x", "top1", 90, 3, {"top1": 40.0}, {"top1": 42.5}, of)], a="A", b="<B>"
    ).decode()
    for words in ("-2.5", "-4.0 to -1.0", "0.004", "&lt;B&gt;", "Rows: 90; 3 more"):
        assert words in text


def test_an_evaluation_without_classes_or_examples_has_its_numbers(tmp_path: Path) -> None:
    of = evaluated(tmp_path)
    bare = Evaluated(of.settings, of.images, Result({"top1": 12.0}, {"pairs": 3}, {}, []), {}, [])
    assert "12.00" in page.html(Evaluation([bare], {}), model=json.dumps("x")).decode()
