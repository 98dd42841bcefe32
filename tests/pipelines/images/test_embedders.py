"""Embedders: each makes its vector of the image alone; and every way a model and its files can be wrong.

The model in ONNX is made here. Those of open_clip and timm: `test_embedders_of_torch`.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from altalign import cli
from altalign.dedup import embed
from altalign.errors import UsageError
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.pipelines.images import embedders, measuring
from altalign.settings.curate import CurateConfig, DecontaminateSettings
from tests.pipelines.images.embedding import FLAT, IMAGE, check_same_whoever_asks, cosine, features

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
TOML = """
input_size = [6, 8]
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.25, 0.3]
layout = "nchw"
"""
needs_onnx = pytest.mark.skipif(
    not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")),
    reason="the model is written by onnx and run by onnxruntime",
)


# Without weights ------------------------------------------------------------------------------------------------------


def test_dct_gives_coefficients_that_a_map_makes_vectors_of() -> None:
    embedder = embedders.load("dct")
    expected, _ = embed.dct_coefficients(thumbnail(pixels.gray(IMAGE))[np.newaxis])
    assert np.array_equal(features(embedder, IMAGE), expected[0])
    assert (embedder.is_mapped, embedder.colour, embedder.dimensions) == (True, False, 192)
    check_same_whoever_asks(embedder)


def test_phash_gives_the_vector_of_its_bits() -> None:
    embedder = embedders.load("phash")
    one, other = features(embedder, IMAGE), features(embedder, IMAGE[:, ::-1])
    assert set(np.unique(one)) == {-1, 1}
    distance = int((one != other).sum())
    assert 0 < distance < 64
    assert one @ other / 64 == 1 - distance / 32
    # fixed for ever: calibrations and clusters were made with such bits, in the order of imagehash
    rings = np.hypot(*np.mgrid[-90:110, -70:130]) % 60 * 4
    assert np.packbits(features(embedder, rings.astype(np.uint8)) > 0).tobytes().hex() == "d1355616f83ac9d8"
    assert (embedder.is_mapped, embedder.colour, embedder.dimensions) == (False, False, embedders.PHASH_BITS)
    check_same_whoever_asks(embedder)


@pytest.mark.parametrize("name", ["dct", "phash"])
def test_a_flat_image_has_no_features(name: str) -> None:
    assert embedders.load(name).features(FLAT) is None
    assert embedders.load(name).features(FLAT[:, :, 0]) is None


# ONNX -----------------------------------------------------------------------------------------------------------------


def save_onnx(path: Path, weights: np.ndarray, *, scale: float = 1.0) -> Path:
    """Save a model for images of 6 x 8 with three outputs.

    `sums` is a projection of all values, of shape (1, 2, d / 2); `less` is its negative; `nothing` is zeros.
    """
    import onnx

    size, wide = weights.shape
    shapes = {"flat": [1, size], "sums shape": [1, 2, wide // 2]}
    numbers = {
        **{f"{name}": np.array(value, np.int64) for name, value in shapes.items()},
        "weights": (weights * scale).astype(np.float32),
        "zero": np.zeros(1, np.float32),
    }
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Reshape", ["pixels", "flat"], ["row"]),
            onnx.helper.make_node("MatMul", ["row", "weights"], ["product"]),
            onnx.helper.make_node("Reshape", ["product", "sums shape"], ["sums"]),
            onnx.helper.make_node("Neg", ["product"], ["less"]),
            onnx.helper.make_node("Mul", ["product", "zero"], ["nothing"]),
        ],
        "projection",
        [onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, [1, 3, 6, 8])],
        [
            onnx.helper.make_tensor_value_info("sums", onnx.TensorProto.FLOAT, [1, 2, wide // 2]),
            onnx.helper.make_tensor_value_info("less", onnx.TensorProto.FLOAT, [1, wide]),
            onnx.helper.make_tensor_value_info("nothing", onnx.TensorProto.FLOAT, [1, wide]),
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


WEIGHTS = np.random.default_rng(1).normal(size=(3 * 6 * 8, 10))


@pytest.fixture
def onnx_model(tmp_path: Path) -> Path:
    (tmp_path / "model.toml").write_text(TOML)
    return save_onnx(tmp_path / "model.onnx", WEIGHTS)


@needs_onnx
def test_onnx_gives_the_first_output_of_the_image_as_its_toml_wants_it(onnx_model: Path) -> None:
    embedder = embedders.load(f"onnx:{onnx_model}")
    small = np.asarray(Image.fromarray(IMAGE).resize((8, 6), Image.Resampling.BILINEAR), np.float64) / 255
    expected = ((small - MEAN) / STD).transpose(2, 0, 1).ravel() @ WEIGHTS
    assert cosine(features(embedder, IMAGE), expected) > 0.999999
    assert np.linalg.norm(features(embedder, IMAGE).astype(float)) == pytest.approx(embed.NORM, rel=1e-3)
    assert (embedder.dimensions, embedder.colour, embedder.is_mapped, embedder.short_side_px) == (10, True, False, 8)
    assert embedder.features(FLAT) is None
    check_same_whoever_asks(embedder)


@needs_onnx
def test_onnx_takes_gray_as_rgb(onnx_model: Path) -> None:
    embedder = embedders.load(f"onnx:{onnx_model}")
    gray = IMAGE[:, :, 1]
    assert np.array_equal(features(embedder, gray), features(embedder, np.stack([gray] * 3, axis=2)))


@needs_onnx
def test_onnx_gives_the_output_that_is_named(onnx_model: Path) -> None:
    toml, first = onnx_model.with_suffix(".toml"), features(embedders.load(f"onnx:{onnx_model}"), IMAGE)
    for name, expected in (("sums", first), ("less", -first)):
        toml.write_text(TOML + f'output_name = "{name}"\n')
        assert np.array_equal(features(embedders.load(f"onnx:{onnx_model}"), IMAGE), expected)
    toml.write_text(TOML + 'output_name = "cls"\n')
    with pytest.raises(
        UsageError, match=r'model\.toml output_name = "cls": the model has no such output, it has sums, less, nothing'
    ):
        embedders.load(f"onnx:{onnx_model}")
    toml.write_text(TOML + 'output_name = "nothing"\n')
    with pytest.raises(UsageError, match="of two different pictures are equal, empty or not finite"):
        embedders.load(f"onnx:{onnx_model}")


@needs_onnx
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("input_size = [8, 6]", r"model\.onnx: does not take the input that .*model\.toml describes"),
        ('layout = "nhwc"', r"model\.onnx: does not take the input"),
        ("mean = [0.5]", "mean"),
        ("std = [0.2, 0.0, 0.3]", "std"),
        ("output_index = 1", "output_index"),
        ("size = 224", "size"),
    ],
)
def test_a_toml_that_does_not_fit_is_named(onnx_model: Path, line: str, message: str) -> None:
    key = line.split(" ")[0]
    lines = [each for each in TOML.splitlines() if not each.startswith(f"{key} ")]
    onnx_model.with_suffix(".toml").write_text("\n".join([*lines, line]))
    with pytest.raises(UsageError, match=message):
        embedders.load(f"onnx:{onnx_model}")


@needs_onnx
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (WEIGHTS * np.float32(1e38), "equal, empty or not finite"),
        (WEIGHTS * 0, "of two different pictures are equal, empty or not finite"),
        (np.ones((144, 4098)), r"features of shape \(1, 4098\), not \(n, d\) with d from 1 to 4,096"),
    ],
)
def test_a_model_whose_features_cannot_be_compared_is_refused(
    tmp_path: Path, weights: np.ndarray, message: str
) -> None:
    (tmp_path / "model.toml").write_text(TOML)
    with np.errstate(over="ignore"):
        save_onnx(tmp_path / "model.onnx", weights)
    with pytest.raises(UsageError, match=message):
        embedders.load(f"onnx:{tmp_path / 'model.onnx'}")


@needs_onnx
def test_files_that_are_missing_or_no_model_are_named(onnx_model: Path) -> None:
    for name in ("nowhere.onnx", "model.toml"):
        with pytest.raises(UsageError, match=rf'embedder = "onnx:.*{name}": no such file of the name \*\.onnx'):
            embedders.load(f"onnx:{onnx_model.with_name(name)}")
    onnx_model.write_bytes(b"no model")
    with pytest.raises(UsageError, match=r'\[decontaminate\] embedder = "onnx:.*": onnxruntime cannot load it'):
        embedders.load(f"onnx:{onnx_model}")
    onnx_model.with_suffix(".toml").unlink()
    with pytest.raises(UsageError, match=r"model\.toml: no such settings file"):
        embedders.load(f"onnx:{onnx_model}")


@needs_onnx
def test_what_a_run_rests_on_has_the_toml_in_it(onnx_model: Path) -> None:
    settings = DecontaminateSettings(embedder=f"onnx:{onnx_model}")
    assert settings.embedder_files == [str(onnx_model), str(onnx_model.with_suffix(".toml"))]
    config = config_of(onnx_model.parent, settings.embedder)
    before = measuring.hooks_of(config)
    assert measuring.hooks_of(config) is before
    assert (before.colour, before.short_side_px) == (True, 8)
    onnx_model.with_suffix(".toml").write_text(TOML.replace("0.5", "0.45"))
    after = measuring.hooks_of(config)
    assert not np.array_equal(features(before.embedder, IMAGE), features(after.embedder, IMAGE))


# What is missing, said before any work --------------------------------------------------------------------------------


def config_of(folder: Path, embedder: str) -> CurateConfig:
    (folder / "pairs.csv").write_text("url,caption\nhttps://a.example/1.png,a cat\n", encoding="utf-8")
    values = {
        "input": {"kind": "table", "paths": [str(folder / "pairs.csv")]},
        "run": {"folder": str(folder / "run")},
        "decontaminate": {"embedder": embedder},
    }
    return CurateConfig.from_values(values, where="test")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("onnx:a.onnx", "onnxruntime", "onnx"),
        ("open_clip:ViT-B-32:a.pt", "open_clip", "open_clip"),
        ("timm:vit_tiny_patch16_224:a.pt", "timm", "timm"),
    ],
)
def test_without_its_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted, *rest: None if wanted == package else real(wanted, *rest)
    )
    with pytest.raises(
        UsageError,
        match=rf"^\[decontaminate\] embedder = \"{name}\": the package {package} is missing; "
        rf"`make setup EXTRAS={extra}` brings it in a checkout, `pip install 'altalign\[{extra}\]'` elsewhere$",
    ):
        embedders.load(name)


@pytest.mark.parametrize(
    "embedder",
    [
        "onnx:nowhere.onnx",
        "open_clip:ViT-B-32:nowhere.pt",
        "timm:vit_tiny_patch16_224:nowhere.safetensors",
        "run:nowhere",
    ],
)
def test_a_command_stops_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str], embedder: str) -> None:
    config_of(tmp_path, embedder)
    config = tmp_path / "mine.toml"
    config.write_text(
        f'[run]\nfolder = "{tmp_path}/run"\n[[input]]\nkind = "table"\npaths = ["{tmp_path}/pairs.csv"]\n'
        f'[decontaminate]\nembedder = "{embedder}"\n'
    )
    assert cli.main(["curate", str(config)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f'[decontaminate] embedder = "{embedder}"' in said
    assert not (tmp_path / "run").exists()
