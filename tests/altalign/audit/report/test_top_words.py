"""The most common words of kept and dropped captions, against plain loops, and the sample that they are counted on."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.audit import rows as run_rows
from altalign.audit.report import captions, page
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError
from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import PASSED

KEPT = ["a red boat", "A RED car, a red bus", "the boat", "blue"]
DROPPED = ["click here", "click here a boat", "logo"]


def counted(captions: list[str], texts: list[str]) -> list[int]:
    """In how many captions each n-gram is: two loops over words that spaces part."""
    words = [caption.lower().replace(",", "").split() for caption in captions]
    every = [{*of, *(f"{first} {second}" for first, second in pairwise(of))} for of in words]
    return [sum(text in each for each in every) for text in texts]


def test_words_are_counted_once_a_caption_and_the_most_common_come_first() -> None:
    found = captions.compared(KEPT, DROPPED, (4, 3))
    for side in (found.kept, found.dropped):
        for told in (side.words, side.bigrams):
            texts = [ngram.text for ngram, _ in told]
            assert [ngram.kept for ngram, _ in told] == counted(KEPT, texts)
            assert [ngram.dropped for ngram, _ in told] == counted(DROPPED, texts)
    assert [ngram.text for ngram, _ in found.kept.words[:3]] == ["a", "boat", "red"]
    assert [ngram.text for ngram, _ in found.kept.bigrams[:1]] == ["a red"]
    assert [ngram.text for ngram, _ in found.dropped.bigrams] == ["click here", "a boat", "here a"]
    assert not found.is_sample


def test_what_is_twice_as_common_on_a_side_is_typical_of_it() -> None:
    found = captions.compared(["x y", "x y", "x", "x"], ["x", "y"], (4, 2))
    assert {ngram.text: typical for ngram, typical in found.kept.words} == {"x": True, "y": False}
    assert {ngram.text: typical for ngram, typical in found.dropped.words} == {"x": False, "y": False}


def test_a_side_without_captions_has_no_words() -> None:
    found = captions.compared([], ["logo"], (0, 1))
    assert found.kept.words == []
    assert [ngram.text for ngram, _ in found.dropped.words] == ["logo"]


@pytest.mark.parametrize("number", [0, 1, 7, 16, 17, 1000])
@pytest.mark.parametrize("at_most", [1, 16])
def test_numbers_are_spread_evenly(number: int, at_most: int) -> None:
    found = run_rows.spread(number, at_most)
    assert len(found) == min(number, at_most)
    steps = [after - before for before, after in pairwise(found)]
    assert max(steps, default=1) - min(steps, default=1) <= 1
    assert set(found) <= set(range(number))


def test_a_large_run_is_sampled_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 files of 3 row groups of 20 captions: one row group of 16 files is read, and 6 captions of each."""
    run = report_run.write(tmp_path, report_run.candidates(400))
    strings = [f"word{number}" for number in range(60)]
    for number in range(40):
        for name in (f"{number:06d}-00000", f"repeated-{number:05d}"):
            of_file = strings if name[0] == "0" else ["repeated"]
            folder = run / "dropped/judge"
            pq.write_table(pa.table({"caption": of_file}), folder / f"{name}.parquet", row_group_size=20)
    monkeypatch.setattr(captions, "CAPTIONS_AT_MOST", 100)
    counts = Counter({("judge", "text_too_short"): 2_400, ("judge", "pair_repeated"): 40, ("decontaminate", "kept"): 3})
    found = captions.top_words(RunFolder.open(str(run)), counts)
    assert found is not None
    assert (found.dropped.captions, found.dropped.captions_in_all) == (96, 2_400)
    assert (found.kept.captions, found.kept.captions_in_all) == (3, 3)
    assert found.is_sample
    assert "repeated" not in {ngram.text for ngram, _ in found.dropped.words}
    gathered = page.gather(RunFolder.open(str(run)), PASSED)
    assert b"Counted on a sample: " in page.html(gathered)
    assert gathered.words is not None
    assert json.loads(json.dumps(gathered.to_json()))["words"]["dropped"]["captions"] == gathered.words.dropped.captions


def test_without_dropped_rows_the_page_says_why_there_are_no_words(tmp_path: Path) -> None:
    run = report_run.write(tmp_path, report_run.candidates(100), extra="\n[audit]\nkeep_dropped = false\n")
    found = page.gather(RunFolder.open(str(run)), PASSED)
    assert found.words is None
    assert b"so their words are unknown" in page.html(found)


def test_a_caption_that_is_no_text_names_its_file(tmp_path: Path) -> None:
    run = report_run.write(tmp_path, report_run.candidates(100))
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"caption": broken}), run / "shards/000000-00000.parquet")
    with pytest.raises(UnreadableError, match=r"shards/000000-00000\.parquet: cannot be read"):
        page.gather(RunFolder.open(str(run)), PASSED)
