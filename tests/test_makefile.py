"""What make says to somebody who has just begun."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_python_that_is_not_there_is_named_with_what_to_give(tmp_path: Path) -> None:
    for cache in (".cache", tmp_path / "cache"):  # with and without a uv that is installed already
        argv = ["make", "curate", "PYTHON=python2.99", f"VENV={tmp_path / 'environment'}", f"CACHE={cache}"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.endswith("python2.99: no such program; give PYTHON=… of Python 3.11 to 3.14.  Stop.")
    assert not [*tmp_path.iterdir()]
