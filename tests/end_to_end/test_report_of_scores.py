"""What report and card say of scores: every number against plain loops over the files, and the page in a browser."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from altalign.audit.report import captions, page
from altalign.audit.report.distributions import Distribution
from altalign.audit.report.scores import Scores
from altalign.audit.run_folder import RunFolder
from altalign.cli import main
from altalign.filters import one_caption
from tests import made_once
from tests.end_to_end.scored import rows
from tests.support.chromium import browser, opened

pytestmark = pytest.mark.runs

WHERE = "similarity >= -0.1 AND text_characters > 15"
WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def selected(scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A selection of the scored run; read only."""

    def make(folder: Path) -> None:
        with chdir(scored):
            assert main(["select", "run", str(folder / "out"), "--where", WHERE, "--top", "picture_entropy=0.75"]) == 0

    return made_once.made_once("selected", tmp_path_factory, make) / "out"


def scores_of(run: Path) -> Scores:
    found = page.gather(RunFolder.open(str(run)), ()).scores
    assert found is not None
    return found


def gone(run: Path) -> list[dict[str, Any]]:
    found: Any = pq.read_table(run / "dropped" / "select").to_pylist()
    return [{**row, **json.loads(row["scores"])} for row in found]


@pytest.mark.everyday
def test_distributions_have_every_sample_on_its_side_of_the_thresholds(selected: Path) -> None:
    found = {each.title: each for each in scores_of(selected).distributions}
    kept, dropped = rows(selected).to_pylist(), gone(selected)
    assert {"similarity", "language", "text_characters", "picture_sharpness"} <= found.keys()
    for column, value in (("similarity", -0.1), ("text_characters", 16)):
        each = found[column]
        assert sum(part.kept for part in each.bins) == len(kept)
        assert sum(part.dropped for part in each.bins) == len(dropped)
        (line,) = each.thresholds
        assert sum(part.kept for part in each.bins[: line.at]) == 0
        below = sum(row[column] < value for row in dropped)
        assert sum(part.dropped for part in each.bins[: line.at]) == below > 0
    assert found["picture_entropy"].thresholds[0].label == "largest 75%"
    assert sum(part.dropped for part in found["picture_sharpness"].bins) == 0  # it was not decided by that
    labels = Counter(row["language"] for row in kept)
    assert {part.label: part.kept for part in found["language"].bins if part.kept} == labels


def test_languages_are_those_of_plain_loops(selected: Path) -> None:
    found, kept, dropped = scores_of(selected), rows(selected).to_pylist(), gone(selected)
    received = Counter(row["language"] for row in (*kept, *dropped))
    assert {each["name"]: each["received"] for each in found.languages} == received
    for each in found.languages:
        lost = Counter(rule for row in dropped if row["language"] == each["name"] for rule in row["failed"])
        assert each["lost"] == lost
        assert each["kept"] == sum(row["language"] == each["name"] for row in kept)


def test_samples_are_a_tenth_apart_and_on_both_sides_of_a_threshold(selected: Path) -> None:
    shelves = {(each.column, each.about): each.cards for each in scores_of(selected).shelves}
    values = {row["key"]: row["similarity"] for row in rows(selected).to_pylist()}
    of_range = shelves["similarity", "from the smallest value to the largest"]
    shown = [values[str(card.key)] for _, card in of_range]
    assert shown == sorted(shown)
    assert (len(shown), shown[0], shown[-1]) == (11, min(values.values()), max(values.values()))
    around = shelves["similarity", "on both sides of >= -0.1"]
    inside, outside = ([card for label, card in around if label.startswith(side)] for side in ("in", "out"))
    assert sorted(values[str(card.key)] for card in inside) == sorted(values.values())[: len(inside)]
    below = {row["key"]: row["similarity"] for row in gone(selected) if row["similarity"] < -0.1}
    assert [below[str(card.key)] for card in outside] == sorted(
        (below[str(card.key)] for card in outside), reverse=True
    )
    assert outside
    assert all(card.picture for card in (*inside, *outside))


Row = dict[str, Any]


def assert_curve(each: Distribution, received: list[Row], stays: Callable[[Row, float], bool]) -> None:
    """What each stop keeps is what a plain loop keeps with it."""
    for part in each.bins:
        assert part.kept == sum(stays(row, float(part.label)) for row in received), (each.title, part)


def test_other_thresholds_keep_what_a_plain_loop_keeps(selected: Path) -> None:
    curves = {each.title: each for each in scores_of(selected).thresholds}
    names = ["similarity, >= -0.1", "text_characters, > 15", "picture_entropy, largest 75%"]
    assert [*curves] == names
    kept = rows(selected).to_pylist()
    received, entropy = [*kept, *gone(selected)], min(row["picture_entropy"] for row in kept)

    def others(row: Row, *, similarity: float = -0.1, characters: float = 15) -> bool:
        return (
            row["similarity"] >= similarity
            and row["text_characters"] > characters
            and row["picture_entropy"] >= entropy
        )

    assert_curve(curves[names[0]], received, lambda row, stop: others(row, similarity=stop))
    assert_curve(curves[names[1]], received, lambda row, stop: others(row, characters=stop))
    for each in curves.values():
        (own,) = each.thresholds
        assert each.bins[own.at].kept == len(kept)
        assert len({part.kept for part in each.bins}) > 2


def test_rows_that_fail_another_rule_stay_out(scored: Path, tmp_path: Path) -> None:
    with chdir(scored):
        where = "similarity >= 0 AND (language = 'en' OR text_characters < 20) AND text_characters >= 9"
        assert main(["select", "run", str(tmp_path / "out"), "--where", where]) == 0
    curves = {each.title: each for each in scores_of(tmp_path / "out").thresholds}
    assert [*curves] == ["similarity, >= 0", "text_characters, >= 9"]

    def stays(row: Row, stop: float) -> bool:
        is_other = (row["language"] == "en" or row["text_characters"] < 20) and row["text_characters"] >= 9
        return is_other and row["similarity"] >= stop

    received = rows(scored / "run").to_pylist()
    assert_curve(curves["similarity, >= 0"], received, stays)
    assert curves["similarity, >= 0"].bins[0].kept == sum(stays(row, -2) for row in received) < len(received)


def test_a_run_that_was_only_scored_has_its_distributions_and_no_thresholds(scored: Path) -> None:
    found = scores_of(scored / "run")
    assert all(not each.thresholds for each in found.distributions)
    assert all(each["kept"] == each["received"] for each in found.languages)
    assert found.thresholds == []
    assert [each["name"] for each in found.named] == ["language", "picture", "similarity", "text"]


def test_the_share_kept_of_a_list_of_words_is_that_of_a_plain_loop(
    selected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "colours.txt").write_text("red\nlight blue\n", encoding="utf-8")
    everything, colours = captions.slices(RunFolder.open(str(selected)), {"colours": str(tmp_path / "colours.txt")})
    kept = [row["caption"] for row in rows(selected).to_pylist()]
    dropped = [
        row["caption"] or ""
        for stage in ("judge", "fetch", "image", "decontaminate", "select")
        for path in (selected / "dropped" / stage).glob("*.parquet")
        if not path.name.startswith("repeated-")
        for row in pq.read_table(path, columns=["caption"]).to_pylist()
    ]

    def has(caption: str) -> bool:
        return bool({"red", "light blue"} & set(one_caption.ngrams_of(caption)))

    assert (everything.captions, everything.kept) == (len(kept) + len(dropped), len(kept))
    assert (colours.captions, colours.kept) == (sum(map(has, [*kept, *dropped])), sum(map(has, kept)))
    assert 0 < colours.kept < colours.captions
    share = colours.kept / colours.captions
    for end in (colours.low, colours.high):  # Wilson's interval: where the share is 1.96 deviations away
        assert abs(share - end) == pytest.approx(1.959964 * (end * (1 - end) / colours.captions) ** 0.5)
    for words, said in (
        ("colours", "--words colours: not of the form NAME=FILE"),
        ("a=nowhere.txt", "--words nowhere.txt: cannot be read"),
    ):
        assert main(["audit", str(selected), "--words", words]) == 2
        assert said in capsys.readouterr().err


def test_the_card_names_scores_and_models(selected: Path) -> None:
    text = (selected / "README.md").read_text(encoding="utf-8")
    facts = json.loads((selected / "scores" / "similarity" / "manifest.json").read_bytes())
    assert f"| similarity | similarity | `similarity` | onnx:clip | `{facts['digest'][:16]}` |" in text
    assert "no model has compared them" not in text
    card = json.loads((selected / "croissant.json").read_bytes())
    (of,) = [each for each in card["recordSet"] if each["name"] == "of-similarity"]
    assert f"Score similarity, of kind similarity, by onnx:clip, digest {facts['digest']}" == of["description"]
    assert [field["name"] for field in of["field"]] == ["key", "similarity"]
    assert "scores/similarity/*.parquet" in [each["includes"] for each in card["distribution"]]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_loads_in_silence_and_fits(chromium: Any, selected: Path, tmp_path: Path, width: int) -> None:
    from altalign.audit.report import page

    (tmp_path / "colours.txt").write_text("red\nblue\n", encoding="utf-8")
    found = page.gather(RunFolder.open(str(selected)), (), {"colours": str(tmp_path / "colours.txt")})
    assert found.scores is not None
    path = tmp_path / "report.html"
    path.write_bytes(page.html(found))
    with opened(chromium, path, width=width) as tab:
        drawn = sum(bool(each.bins) for each in (*found.scores.distributions, *found.scores.thresholds))
        assert tab.page.locator("#scores .plot canvas").count() == drawn > 8
        tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert tab.page.locator("#scores .card").count() == sum(len(each.cards) for each in found.scores.shelves)
        assert tab.page.locator("#slices tbody tr").count() == 2
        assert (tab.complaints, tab.requests) == ([], [path.as_uri()])
        assert tab.overflow() <= 0
        assert tab.outside() == []
