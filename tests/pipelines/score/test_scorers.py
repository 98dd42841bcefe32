import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.fft
from PIL import Image
from safetensors.numpy import save_file

from altalign.data.schema import SAMPLE
from altalign.dedup import embed
from altalign.errors import UsageError
from altalign.models import model
from altalign.pipelines.score import scoring
from altalign.pipelines.score.scorers import Batch
from altalign.settings.score import ScoreConfig
from tests.pipelines import score_models

FASTTEXT = Path(__file__).with_name("fasttext")
CAPTIONS = ["a red ring", "the old house near a dog", "a red ring", "unheard of"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scorers(*scores: dict[str, Any]) -> list[Any]:
    return scoring.loaded(ScoreConfig.from_values({"score": list(scores)}, where="scores.toml"), "scores.toml")


def batch(prepares: dict[str, Any], *, broken: int | None = None) -> tuple[Batch, list[np.ndarray]]:
    """Four captions of three pictures."""
    pictures = [np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8) for seed in range(3)]
    columns = {name: pa.nulls(4, SAMPLE.field(name).type) for name in SAMPLE.names}
    columns |= {"caption": pa.array(CAPTIONS), "key": pa.array([f"{number:032x}" for number in range(4)])}
    images = [
        None if number == broken else {name: make(picture) for name, make in prepares.items()}
        for number, picture in enumerate(pictures)
    ]
    return Batch(pa.table(columns, schema=SAMPLE), np.array([0, 0, 1, 2]), images), pictures


def test_similarity_is_the_cosine_of_the_towers(in_folder: Path) -> None:
    of_image, of_words = score_models.write(in_folder / "clip")
    (scorer,) = scorers({"name": "similarity", "kind": "similarity", "model": "onnx:clip"})
    given, pictures = batch(dict(scorer.prepares))
    (found,) = scorer.measure(given)
    wanted = []
    for caption, image in zip(CAPTIONS, (0, 0, 1, 2), strict=True):
        numbers = [score_models.WORDS.index(word) if word in score_models.WORDS else 0 for word in caption.split()]
        text = of_words[numbers].sum(axis=0)
        small = np.asarray(Image.fromarray(pictures[image]).resize((8, 8), Image.Resampling.BILINEAR), np.float64)
        vector = ((small / 255 - 0.5) / 0.5).transpose(2, 0, 1).ravel() @ of_image
        wanted.append(vector @ text / np.linalg.norm(vector) / np.linalg.norm(text))
    assert np.abs(np.array(found.to_pylist()) - wanted).max() <= 0.5 / 4096 + 1e-4
    assert all(float(value * 4096).is_integer() for value in found.to_pylist())


def test_embeddings_are_those_of_the_model_at_length_1_in_float16(in_folder: Path) -> None:
    of_image, _ = score_models.write(in_folder / "clip")
    (scorer,) = scorers({"name": "look", "kind": "embedding", "model": "onnx:clip"})
    given, pictures = batch(dict(scorer.prepares), broken=1)
    (found,) = scorer.measure(given)
    assert [row is None for row in found.to_pylist()] == [False, False, True, False]
    for row, image in ((0, 0), (1, 0), (3, 2)):
        small = np.asarray(Image.fromarray(pictures[image]).resize((8, 8), Image.Resampling.BILINEAR), np.float64)
        vector = ((small / 255 - 0.5) / 0.5).transpose(2, 0, 1).ravel() @ of_image
        assert np.allclose(found[row].as_py(), vector / np.linalg.norm(vector), atol=2e-3)
        assert all(np.float16(number) == number for number in found[row].as_py())


def test_a_model_without_its_text_tower_is_no_image_tower(in_folder: Path) -> None:
    score_models.write(in_folder / "clip")
    (in_folder / "clip" / "text.onnx").unlink()
    with pytest.raises(UsageError, match=r"clip/text.onnx is not there"):
        scorers({"name": "look", "kind": "embedding", "model": "onnx:clip"})
    (scorer,) = scorers({"name": "look", "kind": "embedding", "model": "onnx:clip/image.onnx"})
    assert scorer.rests_on["texts"] is False


def test_without_a_model_embeddings_are_the_lowest_frequencies_weighted_by_frequency() -> None:
    (scorer,) = scorers({"name": "look", "kind": "embedding"})
    picture = np.random.default_rng(5).integers(0, 256, (32, 32), np.uint8)
    (prepare,) = scorer.prepares.values()
    found = prepare(picture[:, :, np.newaxis].repeat(3, axis=2))
    transformed = scipy.fft.dctn(picture.astype(np.float64), norm="ortho")
    wanted = [8 * transformed[u, v] * (u * u + v * v) ** 0.5 for u, v in embed.FREQUENCIES]
    assert np.abs(found - wanted).max() < 32
    assert np.isnan(prepare(np.full((50, 40, 3), 77, np.uint8))).all()


def test_texts_and_images_are_encoded_once_for_all_heads_on_a_model(in_folder: Path) -> None:
    score_models.write(in_folder / "clip")
    weight = np.random.default_rng(1).normal(size=(1, score_models.DIMENSIONS)).astype(np.float32)
    save_file({"weight": weight, "bias": np.array([0.5], np.float32)}, "head.safetensors")
    head = {"kind": "linear", "model": "onnx:clip", "weights": "head.safetensors"}
    made = scorers({"name": "similarity", "kind": "similarity", "model": "onnx:clip"}, {"name": "likes", **head})
    assert made[0].prepares.keys() == made[1].prepares.keys()
    given, _ = batch({**made[0].prepares, **made[1].prepares})
    made[0].measure(given)
    embeddings = given.made["onnx:clip", "images"]
    (found,) = made[1].measure(given)
    assert given.made["onnx:clip", "images"] is embeddings
    wanted = embeddings.astype(np.float64)[given.image_of] @ weight[0] + 0.5
    assert np.abs(np.array(found.to_pylist()) - wanted).max() <= 0.5 / 4096 + 1e-6


def test_a_model_sees_few_texts_at_once(in_folder: Path) -> None:
    _, of_words = score_models.write(in_folder / "clip", counts_texts=True)
    words = score_models.WORDS[1:] + score_models.WORDS[1:10]
    found = model.opened("onnx:clip", "test", with_texts=True).of_texts(words)
    at_once = np.repeat([8, 8, 4], [8, 8, 4])[:, None]
    wanted = of_words[[score_models.WORDS.index(word) for word in words]] + at_once
    assert np.abs(found - wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).max() <= 1e-6


def test_an_image_that_cannot_be_decoded_has_no_value(in_folder: Path) -> None:
    score_models.write(in_folder / "clip")
    made = scorers(
        {"name": "similarity", "kind": "similarity", "model": "onnx:clip"}, {"name": "picture", "kind": "image"}
    )
    given, _ = batch({**made[0].prepares, **made[1].prepares}, broken=1)
    assert [value is None for value in made[0].measure(given)[0].to_pylist()] == [False, False, True, False]
    assert all(column.null_count == 1 for column in made[1].measure(given))


def test_faces_and_boxes_of_text_are_what_the_models_find(in_folder: Path) -> None:
    score_models.write_detectors(in_folder)
    (scorer,) = scorers({"name": "p", "kind": "image", "faces": "faces.onnx", "text_boxes": "text.onnx"})
    assert scorer.columns.names[4:] == ["p_faces", "p_faces_share", "p_text_boxes", "p_text_boxes_share"]
    pictures = [np.zeros((40, 80, 3), np.uint8) for _ in range(3)]
    pictures[0][..., 0] = 255
    pictures[1][..., ::2] = 255  # red and blue
    pictures[1][:, :10, 1] = pictures[1][:, -20:, 1] = 255
    given, _ = batch({})
    given.images = [{name: make(each) for name, make in scorer.prepares.items()} for each in pictures]
    found = [column.to_pylist() for column in scorer.measure(given)[4:]]
    assert found == [[1, 1, 2, 0], [0.5, 0.5, 1, 0], [0, 0, 2, 0], [0, 0, 0.375, 0]]


def test_an_image_that_a_detector_refuses_has_no_value(in_folder: Path) -> None:
    score_models.write_detectors(in_folder)
    (scorer,) = scorers({"name": "p", "kind": "image", "text_boxes": "shy.onnx"})
    given, _ = batch({})
    pictures = [np.full((20, 20, 3), value, np.uint8) for value in (90, 255)]
    given.images = [*({name: make(each) for name, make in scorer.prepares.items()} for each in pictures), None]
    sharpness, *_, number, share = (column.to_pylist() for column in scorer.measure(given))
    assert sharpness == [0, 0, 0, None]
    assert (number, share) == ([0, 0, None, None], [0, 0, None, None])


def test_detectors_that_do_not_fit_are_one_line(in_folder: Path) -> None:
    score_models.write_detectors(in_folder)
    faces = {"name": "p", "kind": "image", "faces": "faces.onnx"}
    toml = (in_folder / "faces.toml").read_text(encoding="utf-8")
    for wrong, said in (
        (toml.replace('"scores"', '"marks"'), "the model has no output marks, it has boxes, scores"),
        (toml.replace("= 8", "= 9"), "does not take the input that faces.toml describes"),
        (f"{toml}scores_column = 3\n", "scores of 1 columns, and number 3 is meant"),
        (toml.replace('"boxes"', '"scores"'), "boxes of shape (2, 1)"),
        (f"{toml}kind = 3\n", "no such setting"),
    ):
        (in_folder / "faces.toml").write_text(wrong, encoding="utf-8")
        assert said in fails(faces)
    (in_folder / "faces.toml").write_text(toml, encoding="utf-8")
    (in_folder / "faces.onnx").write_bytes(pickle.dumps({"a": 1}))
    assert "onnxruntime cannot load it" in fails(faces)
    assert "no such file" in fails({**faces, "faces": "faces.pt"})
    assert "has no such setting" in fails({"name": "t", "kind": "text", "faces": "faces.onnx"})


def test_what_is_no_number_is_null(in_folder: Path) -> None:
    score_models.write(in_folder / "clip")
    save_file({"weight": np.full(score_models.DIMENSIONS, np.nan, np.float32)}, "head.safetensors")
    (scorer,) = scorers({"name": "x", "kind": "linear", "model": "onnx:clip", "weights": "head.safetensors"})
    given, _ = batch(dict(scorer.prepares))
    assert scorer.measure(given)[0].null_count == 4


def test_languages_are_those_of_the_model_and_und_below_the_margin() -> None:
    of = {"name": "language", "kind": "language", "model": str(FASTTEXT / "softmax.bin")}
    texts = ["the red dog and a house", "красный дом", "犬 家", ""]
    given = Batch(pa.table({"caption": texts}), np.arange(4))
    labels, probability, margin = scorers(of)[0].measure(given)
    assert labels.to_pylist()[:3] == ["en", "ru", "ja"]
    assert (margin.to_numpy() <= probability.to_numpy()).all()
    least = float(np.sort(margin.to_numpy())[2])
    strict = scorers({**of, "margin_at_least": min(1.0, least)})[0].measure(given)[0].to_pylist()
    assert strict == [
        label if m >= least else "und" for label, m in zip(labels.to_pylist(), margin.to_pylist(), strict=True)
    ]


def test_losses_of_a_training_are_joined_by_key(in_folder: Path) -> None:
    (in_folder / "run" / "noise").mkdir(parents=True)
    keys = [f"{number:032x}" for number in (3, 0, 9)]
    losses = pa.table({"key": keys, "loss": pa.array([1.0, 2.5, 3.0]), "eps": pa.array([0.25, float("nan"), 0.0])})
    pq.write_table(losses, in_folder / "run" / "noise" / "losses.parquet")
    (scorer,) = scorers({"name": "noise", "kind": "noise", "model": "run:run"})
    given, _ = batch({})
    loss, eps = scorer.measure(given)
    assert loss.to_pylist() == [2.5, None, None, 1.0]
    assert eps.to_pylist() == [None, None, None, 0.25]


def test_a_function_of_ones_own_gives_one_column_or_several(in_folder: Path) -> None:
    (in_folder / "mine.py").write_text(
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "def size(caption, *, times):\n    return pc.multiply(pc.utf8_length(caption), times)\n"
        "def both(caption, words=None):\n"
        "    n = pc.utf8_length(caption).cast(pa.float64())\n"
        "    return {'half': pc.divide(n, 2.0), 'root': pc.sqrt(pc.subtract(n, 10.0))}\n",
        encoding="utf-8",
    )
    one, two = scorers(
        {"name": "size", "kind": "own", "function": "mine:size", "settings": {"times": 2}},
        {"name": "both", "kind": "own", "function": "mine:both"},
    )
    given, _ = batch({})
    assert one.measure(given)[0].to_pylist() == [2 * len(caption) for caption in CAPTIONS]
    assert two.columns.names == ["both_half", "both_root"]
    assert two.measure(given)[1].to_pylist()[0] == 0.0
    assert two.columns.types == [pa.float32()] * 2


def fails(*scores: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as error:
        scorers(*scores)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_hostile_model_files_are_one_line(in_folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (in_folder / "was run",)

    score_models.write(in_folder / "clip")
    evil = pickle.dumps(Evil())
    for name in ("head.pt", "head.safetensors", "head.onnx", "lid.bin"):
        (in_folder / name).write_bytes(evil)
    head = {"name": "x", "kind": "linear", "model": "onnx:clip"}
    assert "may be a pickle" in fails({**head, "weights": "head.pt"})
    assert "no safetensors" in fails({**head, "weights": "head.safetensors"})
    assert "onnxruntime cannot load it" in fails({**head, "weights": "head.onnx"})
    assert "no model of fastText" in fails({"name": "x", "kind": "language", "model": "lid.bin"})
    for name in ("image.onnx", "text.onnx", "tokenizer.json"):
        score_models.write(in_folder / name)
        (in_folder / name / name).write_bytes(evil)
        assert name in fails({"name": "x", "kind": "similarity", "model": f"onnx:{name}"})
    assert not (in_folder / "was run").exists()


def test_models_of_wrong_shapes_are_one_line(in_folder: Path) -> None:
    score_models.write(in_folder / "clip")
    score_models.write(in_folder / "odd", text_dimensions=score_models.DIMENSIONS + 1)
    assert "belong together" in fails({"name": "x", "kind": "similarity", "model": "onnx:odd"})
    (in_folder / "clip" / "image.toml").write_text(
        'input_size = 9\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\nlayout = "nchw"\n', encoding="utf-8"
    )
    assert "does not take what it is given" in fails({"name": "x", "kind": "similarity", "model": "onnx:clip"})
    score_models.write(in_folder / "clip3")
    save_file({"weight": np.ones((1, 3), np.float32)}, "head.safetensors")
    head = {"name": "x", "kind": "linear", "model": "onnx:clip3", "weights": "head.safetensors"}
    assert f"does not take {score_models.DIMENSIONS} dimensions" in fails(head)
    save_file({"other": np.ones((1, 3), np.float32)}, "other.safetensors")
    assert "has other; give weight" in fails({**head, "weights": "other.safetensors"})


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ({"name": "caption", "kind": "text"}, "samples have a column of this name"),
        ({"name": "x", "kind": "similarity"}, 'model: kind = "similarity" needs it'),
        ({"name": "x", "kind": "text", "model": "m"}, 'model: kind = "text" has no such setting'),
        ({"name": "x", "kind": "similarity", "model": "clip"}, "no model; give"),
        ({"name": "x", "kind": "language", "model": "nowhere.bin"}, "no such file"),
        ({"name": "x", "kind": "noise", "model": "run:nowhere"}, "no such file"),
        ({"name": "x", "kind": "noise", "model": "nowhere"}, 'takes a training run, "run:TRAINING_RUN"'),
        ({"name": "x", "kind": "text", "profanity": "nowhere.txt"}, "no such file"),
        ({"name": "x", "kind": "own", "function": "nowhere:f"}, "no module 'nowhere'"),
        ({"name": "x", "kind": "own", "function": "f"}, "not of the form"),
        ({"name": "x", "kind": "similarity", "model": "open_clip:ViT-B-32:w.pt"}, ""),
    ],
)
def test_what_is_wrong_with_a_score_is_one_line(score: dict[str, Any], said: str) -> None:
    assert said in fails(score)
