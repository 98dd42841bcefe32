import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from altalign.filters import fasttext, fasttext_files
from altalign.filters.fasttext_files import ModelFileError

FOLDER = Path(__file__).with_name("fasttext")
SAID = json.loads((FOLDER / "predicted.json").read_text(encoding="utf-8"))
FILES = sorted(SAID["found"])


def predictor(name: str) -> fasttext.Predictor:
    return fasttext.Predictor(fasttext_files.read((FOLDER / name).read_bytes()))


@pytest.mark.parametrize("name", FILES)
def test_labels_and_probabilities_are_those_of_fasttext_itself(name: str) -> None:
    of = predictor(name)
    found = of.predict(pa.array(SAID["texts"], pa.string()))
    for row, (labels, probabilities) in enumerate(SAID["found"][name]):
        text = SAID["texts"][row]
        mine = of.model.labels[found.label[row]] if found.label[row] >= 0 else None
        assert mine == (labels[0].removeprefix("__label__") if labels else None), text
        first, second, *_ = [*probabilities, 0.0, 0.0]
        assert abs(found.first[row] - first) < 1e-6, text
        assert abs(found.second[row] - second) < 1e-6, text


@pytest.mark.parametrize("name", FILES)
def test_a_caption_has_its_label_whatever_stands_beside_it(name: str) -> None:
    of, texts = predictor(name), pa.array(SAID["texts"], pa.string())
    together = of.predict(texts)
    alone = [of.predict(texts.slice(row, 1)) for row in range(len(texts))]
    assert np.array_equal(together.first, np.concatenate([each.first for each in alone]))
    assert np.array_equal(together.label, np.concatenate([each.label for each in alone]))


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_refused_wherever_it_ends(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    for end in [*range(0, 200), *range(200, len(data) - 1, 997), len(data) - 1]:
        with pytest.raises(ModelFileError):
            fasttext_files.read(data[:end])


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_says_something(name: str) -> None:
    data, random = (FOLDER / name).read_bytes(), np.random.default_rng(1)
    refused = 0
    for place in [*range(0, 120), *random.integers(0, len(data), 80).tolist()]:
        bad = bytearray(data)
        bad[place] ^= int(random.integers(1, 256))
        try:
            of = fasttext.Predictor(fasttext_files.read(bytes(bad)))
        except ModelFileError:
            refused += 1
            continue
        found = of.predict(pa.array(["the red dog", "", "犬 x"]))
        assert (found.label >= -1).all()
        assert (found.label < len(of.model.labels)).all()
    assert refused > 50


def test_word_vectors_and_pickles_are_named() -> None:
    with pytest.raises(ModelFileError, match="first bytes"):
        fasttext_files.read(b"\x80\x04\x95" + bytes(100))
    data = bytearray((FOLDER / "softmax.bin").read_bytes())
    data[8 + 7 * 4] = 2  # the model: skip-gram
    with pytest.raises(ModelFileError, match="not a classifier"):
        fasttext_files.read(bytes(data))


def test_a_model_of_nan_has_no_probability() -> None:
    of = predictor("softmax.bin")
    broken = fasttext.Predictor(
        fasttext_files.FastText(**{**vars(of.model), "output": np.full_like(of.model.output, np.nan)})
    )
    assert np.isnan(broken.predict(pa.array(["the red dog"])).first).all()
