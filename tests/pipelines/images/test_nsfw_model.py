"""A classifier in an ONNX file is refused with the repair when a part of it is missing."""

import importlib.util
from pathlib import Path

import pytest

from altalign.errors import UsageError
from altalign.pipelines.images import nsfw_model


def test_a_model_without_its_package_says_what_to_install_whatever_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)
    )
    with pytest.raises(
        UsageError, match=r"model = 'any\.onnx': the package onnxruntime is missing; `make setup EXTRAS=nsfw` brings"
    ):
        nsfw_model.load("any.onnx")


def test_a_folder_of_the_name_of_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(UsageError, match=r"no such file of the name \*\.onnx"):
        nsfw_model.load(str(tmp_path / "model.onnx"))


def test_a_model_without_its_toml_names_the_toml(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")
    (tmp_path / "model.onnx").write_bytes(b"not looked at yet")
    with pytest.raises(UsageError, match=r"model\.toml: no such settings file"):
        nsfw_model.load(str(tmp_path / "model.onnx"))
