"""Lists and models that settings name are loaded before any work, and errors in them are reported then."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from altalign.errors import UsageError
from altalign.pipelines.images.measuring import load_block_lists, load_nsfw_model
from altalign.pipelines.opening.find import find_run
from altalign.settings.curate import CurateConfig

SHA256, PDQ = "0" * 64, "pdq:" + "0" * 64


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest))


def found_with(folder: Path, image: dict[str, Any]) -> None:
    """Find a run of one table with these settings of images."""
    (folder / "pairs.csv").write_text("url,caption\nhttps://a.example/1.png,a cat\n", encoding="utf-8")
    values = {
        "input": {"kind": "table", "paths": [str(folder / "pairs.csv")]},
        "run": {"folder": str(folder / "run")},
        "image": image,
    }
    find_run(CurateConfig.from_values(values, where="test"), config_path="config.toml")
    assert not (folder / "run").exists()


def test_lists_without_pdq_hashes_need_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pdqhash")
    (tmp_path / "list").write_text(f"# nothing but SHA-256\n{SHA256}\n")
    assert len(load_block_lists([str(tmp_path / "list")])) == 1
    assert len(load_block_lists([])) == 0
    (tmp_path / "pdq").write_text(f"{PDQ}\n")
    with pytest.raises(
        UsageError, match=r"1 PDQ hashes and the package pdqhash is missing; `make setup EXTRAS=pdq` brings"
    ):
        load_block_lists([str(tmp_path / "list"), str(tmp_path / "pdq")])


@pytest.mark.parametrize("name", ["list", "model.onnx"])
def test_a_run_with_a_missing_file_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")
    path = str(tmp_path / name)
    with pytest.raises(UsageError, match=name):
        found_with(tmp_path, {"nsfw": {"model": path}} if name.endswith(".onnx") else {"blocked_hashes": [path]})


def test_a_list_that_changed_is_read_again_by_the_next_run_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(f"{SHA256}\n")
    found_with(tmp_path, {"blocked_hashes": [str(path)]})
    path.write_text(f"{SHA256}\nno hash\n")
    with pytest.raises(UsageError, match=r"list line 2"):
        found_with(tmp_path, {"blocked_hashes": [str(path)]})


def test_a_model_without_its_package_says_what_to_install_whatever_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "onnxruntime")
    with pytest.raises(
        UsageError, match=r"model = 'any\.onnx': the package onnxruntime is missing; `make setup EXTRAS=nsfw` brings"
    ):
        load_nsfw_model("any.onnx")


def test_a_folder_of_the_name_of_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(UsageError, match=r"no such file of the name \*\.onnx"):
        load_nsfw_model(str(tmp_path / "model.onnx"))


def test_a_model_without_its_toml_names_the_toml(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the classifier needs the extra nsfw")
    (tmp_path / "model.onnx").write_bytes(b"not looked at yet")
    with pytest.raises(UsageError, match=r"model\.toml: no such settings file"):
        load_nsfw_model(str(tmp_path / "model.onnx"))
