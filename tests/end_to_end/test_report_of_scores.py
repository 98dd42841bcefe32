"""What report and card say of scores: every number against plain loops over the files, and the page in a browser."""

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from altalign.audit.report import captions, page
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


@pytest.mark.everyday
def test_columns_have_their_quantiles_and_every_sample_in_a_bar(selected: Path) -> None:
    found = page.gather(RunFolder.open(str(selected)), ()).scores
    assert found is not None
    assert found.condition == WHERE
    drawn, samples = {each.title: each for each in found.distributions}, rows(selected).to_pylist()
    assert [each.score for each in found.columns] == sorted(each.score for each in found.columns)
    assert {each.name for each in found.columns} >= {"similarity", "language", "text_characters", "picture_sharpness"}
    for each in found.columns:
        values = sorted(row[each.name] for row in samples if row[each.name] is not None)
        assert (each.samples, each.missing) == (len(values), len(samples) - len(values))
        assert sum(part.kept for part in drawn[each.name].bins) == len(values)
        if each.name == "language":
            assert {part.label: part.kept for part in drawn[each.name].bins} == Counter(values)
            assert each.quantiles == []
            continue
        assert (each.quantiles[0], each.quantiles[4], each.quantiles[-1]) == pytest.approx(
            (values[0], statistics.median(values), values[-1])
        )
        for part, after in pairwise([*drawn[each.name].bins, None]):
            end = float(after.label) if after else float("inf")
            if each.name == "text_characters":
                assert part is not None
                assert part.kept == sum(float(part.label) <= value < end for value in values)


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
    assert "`altalign score` has detected that of each caption" in text
    card = json.loads((selected / "croissant.json").read_bytes())
    (of,) = [each for each in card["recordSet"] if each["name"] == "of-similarity"]
    assert f"Score similarity, of kind similarity, by onnx:clip, digest {facts['digest']}" == of["description"]
    assert [field["name"] for field in of["field"]] == ["key", "similarity"]
    assert "scores/similarity/[0-9]*.parquet" in [each["includes"] for each in card["distribution"]]


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
        drawn = len(found.scores.distributions)
        assert tab.page.locator("#scores .plot canvas").count() == drawn > 8
        assert tab.page.locator("#scores > .scroll tbody tr").count() == len(found.scores.columns)
        tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert tab.page.locator("#slices tbody tr").count() == 2
        assert (tab.complaints, tab.requests) == ([], [path.as_uri()])
        assert tab.overflow() <= 0
        assert tab.outside() == []
