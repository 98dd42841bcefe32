"""Small models that tests score with: two ONNX graphs and a tokenizer, as `altalign export --to onnx` lays them out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

SIDE, DIMENSIONS = 8, 6
WORDS = ["[UNK]", "a", "red", "blue", "ring", "cross", "house", "dog", "the", "small", "old", "near"]


def _save(
    path: Path, nodes: list[Any], given: Any, weights: dict[str, Any], outputs: tuple[str, ...] = ("embeddings",)
) -> None:
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    out = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "tower", [given], out, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


def write_detectors(folder: Path) -> None:
    """Writes detectors that take squares of `SIDE` px, with values from 0 to 1.

    `faces.onnx` has a box in each half, which is there where the picture is red or blue. `text.onnx` has a map: the
    green of each place. `shy.onnx` has one too, and fails on a picture with a 1 in it.
    """
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    boxes = np.array([[[0, 0, SIDE / 2, SIDE], [SIDE / 2, 0, SIDE, SIDE]]], np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Gather", ["means", "red and blue"], ["both"], axis=1),
        helper.make_node("Reshape", ["both", "shape"], ["scores"]),
        helper.make_node("Identity", ["all boxes"], ["boxes"]),
    ]
    weights = {"all boxes": boxes, "red and blue": np.array([0, 2]), "shape": np.array([1, 2, 1])}
    _save(folder / "faces.onnx", nodes, given, weights, ("boxes", "scores"))
    nodes = [helper.make_node("Gather", ["images", "green"], ["map"], axis=1)]
    _save(folder / "text.onnx", nodes, given, {"green": np.array([1])}, ("map",))
    nodes = [
        helper.make_node("ReduceMax", ["images"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "three"], ["number"]),
        helper.make_node("Cast", ["number"], ["channel"], to=TensorProto.INT64),
        helper.make_node("Gather", ["images", "channel"], ["map"], axis=1),
    ]
    _save(folder / "shy.onnx", nodes, given, {"three": np.array(3, np.float32)}, ("map",))
    of_input = f'input_size = {SIDE}\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\nlayout = "nchw"\n'
    (folder / "faces.toml").write_text(
        f'{of_input}boxes_output = "boxes"\nscores_output = "scores"\n', encoding="utf-8"
    )
    for name in ("text", "shy"):
        (folder / f"{name}.toml").write_text(f'{of_input}finds = "map"\n', encoding="utf-8")


def write(
    folder: Path, *, seed: int = 0, text_dimensions: int = DIMENSIONS, counts_texts: bool = False
) -> tuple[Any, Any]:
    """Writes the folder of a model; returns its weights: of images, (3 * SIDE * SIDE, d), and of words, (words, d).

    With `counts_texts` the number of texts that the graph sees at once is added to each number of their embeddings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    of_image = random.normal(size=(3 * SIDE * SIDE, DIMENSIONS)).astype(np.float32)
    of_words = random.normal(size=(len(WORDS), text_dimensions)).astype(np.float32)
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["embeddings"]),
    ]
    _save(folder / "image.onnx", nodes, images, {"weight": of_image})
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", "length"])
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["vectors"]),
        helper.make_node("ReduceSum", ["vectors", "axis"], ["sums" if counts_texts else "embeddings"], keepdims=0),
    ]
    if counts_texts:
        nodes += [
            helper.make_node("Shape", ["tokens"], ["texts"], start=0, end=1),
            helper.make_node("Cast", ["texts"], ["count"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["sums", "count"], ["embeddings"]),
        ]
    # number 0 is padding: it adds nothing
    table = np.concatenate([np.zeros((1, text_dimensions), np.float32), of_words])
    _save(folder / "text.onnx", nodes, tokens, {"table": table, "axis": np.array([1], np.int64)})
    (folder / "image.toml").write_text(
        f'input_size = {SIDE}\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\nlayout = "nchw"\n', encoding="utf-8"
    )
    vocabulary = {"[PAD]": 0} | {word: number for number, word in enumerate(WORDS, start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessing.json").write_text(json.dumps({"tokens_at_most": 16, "padding": 0}), encoding="utf-8")
    return of_image, of_words
