"""How processes are prepared: allocators, and where kernels are kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from altalign.machine import startup


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


def test_the_package_the_cache_and_a_place_that_is_told_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    startup.place_kernels(tmp_path)
    assert (tmp_path / "filters" / "__pycache__").is_dir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path / "told"))
    startup.place_kernels(tmp_path / "package")
    assert not (tmp_path / "package").exists()
    assert not capsys.readouterr().err


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
