"""How processes are prepared: allocators, and where kernels are kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from altalign.machine import startup

SAID = "compiling kernels, once for this installation: about 20 s\n"


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


def test_compiling_is_announced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    startup.place_kernels(tmp_path)
    assert capsys.readouterr().err == SAID
    startup.place_kernels(tmp_path)  # of another process, which compiles them too
    (tmp_path / "filters" / "__pycache__" / "kernels.nbi").touch()
    startup.place_kernels(tmp_path)
    assert not capsys.readouterr().err


def test_who_calls_no_kernel_announces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    startup.place_kernels(tmp_path, compiles=False)
    assert not capsys.readouterr().err


def test_a_place_that_is_told_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "kernels.nbi").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path / "told"))
    startup.place_kernels(tmp_path / "package")
    assert not capsys.readouterr().err
    assert not (tmp_path / "package").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep Arrow's own choice")
@pytest.mark.parametrize(("given", "backend"), [({}, "jemalloc"), ({"ARROW_DEFAULT_MEMORY_POOL": "system"}, "system")])
def test_arrow_keeps_its_pages_unless_the_user_chose_otherwise(given: dict[str, str], backend: str) -> None:
    code = (
        "from altalign.machine import startup; startup.prepare(); import pyarrow; "
        "print(pyarrow.default_memory_pool().backend_name)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"} | given
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout.strip(), ran.stderr) == (backend, "")
