"""A small classifier, trained here in NumPy and written as ONNX, run for real; and every way its two files can be
wrong.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from altalign.errors import UsageError
from altalign.filters import model_inputs
from altalign.pipelines.images import measuring

onnx = pytest.importorskip("onnx", reason="writes the test's model")
pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
TOML = """
input_size = [24, 32]
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.25, 0.3]
layout = "{layout}"
output_index = 1
"""


def pictures(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Reddish pictures (1) and others (0), of many shapes."""
    rng = np.random.default_rng(seed)
    reddish = rng.random(count) < 0.5
    images = []
    for is_red in reddish:
        image = rng.integers(0, 200, (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3))
        image[:, :, 0 if is_red else int(rng.integers(1, 3))] += 55
        images.append(image.astype(np.uint8))
    return images, reddish


def trained(classifier: model_inputs.Classifier) -> tuple[np.ndarray, float]:
    """Logistic regression on the mean colour of prepared pictures."""
    images, truth = pictures(200, 1)
    features = np.stack([model_inputs.prepare(image, classifier)[0].mean(axis=(1, 2)) for image in images])
    weights, bias = np.zeros(3), 0.0
    for _ in range(500):
        error = 1 / (1 + np.exp(-(features @ weights + bias))) - truth
        weights, bias = weights - features.T @ error / 20, bias - float(error.mean()) * 10
    return weights, bias


def save_model(path: Path, weights: np.ndarray, bias: float, *, axes: list[int]) -> None:
    """Two probabilities: of 0 and of 1. `axes` are those of height and width."""
    both = np.stack([-weights, weights], axis=1).astype(np.float32) / 2
    layout = ["batch", 3, "height", "width"] if axes == [2, 3] else ["batch", "height", "width", 3]
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("ReduceMean", ["pixels", "axes"], ["means"], keepdims=0),
            onnx.helper.make_node("Gemm", ["means", "weights", "bias"], ["logits"]),
            onnx.helper.make_node("Softmax", ["logits"], ["probabilities"]),
        ],
        "reddish",
        [onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, layout)],
        [onnx.helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, ["batch", 2])],
        [
            onnx.numpy_helper.from_array(np.array(axes, np.int64), "axes"),
            onnx.numpy_helper.from_array(both, "weights"),
            onnx.numpy_helper.from_array(np.array([-bias / 2, bias / 2], np.float32), "bias"),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "red.toml").write_text(TOML.format(layout="nchw"))
    weights, bias = trained(model_inputs.Classifier.load(tmp_path / "red.toml"))
    save_model(tmp_path / "red.onnx", weights, bias, axes=[2, 3])
    return tmp_path / "red.onnx"


def test_a_trained_classifier_tells_new_pictures(model: Path) -> None:
    loaded = measuring.load_nsfw_model(str(model))
    images, truth = pictures(100, 2)
    scores = np.array([loaded.score(image) for image in images])
    assert ((scores >= 0.5) == truth).mean() > 0.95
    assert scores.min() >= 0
    assert scores.max() <= 1
    assert scores.tolist() == [loaded.score(image) for image in images]
    assert loaded.graph.input.short_side_px == 32


def test_both_layouts_give_the_same_scores(model: Path, tmp_path: Path) -> None:
    weights, bias = trained(model_inputs.Classifier.load(model.with_suffix(".toml")))
    save_model(tmp_path / "last.onnx", weights, bias, axes=[1, 2])
    (tmp_path / "last.toml").write_text(TOML.format(layout="nhwc"))
    first, last = measuring.load_nsfw_model(str(model)), measuring.load_nsfw_model(str(tmp_path / "last.onnx"))
    for image in pictures(20, 3)[0]:
        assert first.score(image) == pytest.approx(last.score(image), abs=2e-4)


def test_an_image_is_squeezed_scaled_and_normalised() -> None:
    values = {"input_size": 8, "mean": MEAN, "std": STD, "layout": "nchw", "output_index": 0}
    classifier = model_inputs.Classifier.from_values(values, where="test")
    image = np.zeros((30, 90, 3), np.uint8)
    image[:] = (255, 0, 51)
    batch = model_inputs.prepare(image, classifier)
    assert (batch.shape, batch.dtype, batch.flags.c_contiguous) == ((1, 3, 8, 8), np.float32, True)
    assert batch[0, :, 4, 4] == pytest.approx([0.5 / 0.2, -0.4 / 0.25, -0.1 / 0.3], abs=1e-5)
    backwards = model_inputs.Classifier.from_values(
        {**values, "channels": "bgr", "scale": 1.0, "layout": "nhwc"}, where="test"
    )
    assert model_inputs.prepare(image, backwards)[0, 4, 4] == pytest.approx(
        [50.5 / 0.2, -0.4 / 0.25, 254.7 / 0.3], rel=1e-5
    )
    assert model_inputs.prepare(np.asarray(Image.fromarray(image).convert("L")), classifier).shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("activation", "output", "expected"),
    [
        ("none", [[0.25, 0.75]], 0.75),
        ("sigmoid", [[9.0, 0.0]], 0.5),
        ("sigmoid", [[0, -1000.0]], 0.0),
        ("softmax", [1000.0, 1000.0], 0.5),
        ("none", [[0, 0.123456]], 0.1235),
    ],
)
def test_the_score_is_read_from_the_output(activation: str, output: list, expected: float) -> None:
    values = {"input_size": 8, "mean": MEAN, "std": STD, "layout": "nchw", "output_index": 1, "activation": activation}
    assert (
        model_inputs.score(np.array(output, np.float32), model_inputs.Classifier.from_values(values, where="test"))
        == expected
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("output_index = 2", "fewer outputs"),
        ('layout = "nhwc"', "does not take the input"),
        ('layout = "hwc"', "layout"),
        ("mean = [0.5]", "mean"),
        ("std = [0.2, 0.0, 0.3]", "std"),
        ("input_size = [24]", "input_size"),
        ("input_size = 0", "input_size"),
        ("stdev = [1.0, 1.0, 1.0]", "stdev: no such section .*, std, "),
    ],
)
def test_a_toml_that_does_not_fit_is_named(model: Path, line: str, message: str) -> None:
    key = line.split(" ")[0]
    lines = [each for each in TOML.format(layout="nchw").splitlines() if not each.startswith(f"{key} ")]
    model.with_suffix(".toml").write_text("\n".join([*lines, line]))
    with pytest.raises(UsageError, match=message):
        measuring.load_nsfw_model(str(model))


@pytest.mark.parametrize("key", ["input_size", "mean", "std", "layout", "output_index"])
def test_a_missing_key_is_named(model: Path, key: str) -> None:
    lines = TOML.format(layout="nchw").splitlines()
    model.with_suffix(".toml").write_text("\n".join(line for line in lines if not line.startswith(f"{key} ")))
    with pytest.raises(UsageError, match=key):
        measuring.load_nsfw_model(str(model))


def test_files_that_are_missing_or_no_model_are_named(model: Path) -> None:
    with pytest.raises(UsageError, match=r"\*\.onnx"):
        measuring.load_nsfw_model(str(model.with_name("nowhere.onnx")))
    with pytest.raises(UsageError, match=r"\*\.onnx"):
        measuring.load_nsfw_model(str(model.with_suffix(".toml")))
    model.write_bytes(b"no model")
    with pytest.raises(UsageError, match="cannot load it"):
        measuring.load_nsfw_model(str(model))
    model.with_suffix(".toml").unlink()
    with pytest.raises(UsageError, match=r"red\.toml"):
        measuring.load_nsfw_model(str(model))


def test_without_onnxruntime_the_command_stops(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"`make setup EXTRAS=nsfw` brings"):
        measuring.load_nsfw_model(str(model))
