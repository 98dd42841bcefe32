"""Compiling is announced once for an installation, and not by commands that call no kernel."""

import os
from pathlib import Path

import pytest

from altalign.machine import kernel_cache

SAID = "compiling kernels, once for this installation: about 20 s\n"


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


def test_compiling_is_announced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_cache.settle(tmp_path)
    assert capsys.readouterr().err == SAID
    kernel_cache.settle(tmp_path)  # of another process, which compiles them too
    (tmp_path / "filters" / "__pycache__" / "kernels.nbi").touch()
    kernel_cache.settle(tmp_path)
    assert not capsys.readouterr().err


def test_who_calls_no_kernel_announces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_cache.settle(tmp_path, compiles=False)
    assert not capsys.readouterr().err


def test_a_place_that_is_told_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "kernels.nbi").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path / "told"))
    kernel_cache.settle(tmp_path / "package")
    assert not capsys.readouterr().err
    assert not (tmp_path / "package").exists()
