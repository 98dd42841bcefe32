"""The Pythons of this machine that altalign is for.

`python tools/pythons.py` prints version and path of the oldest and the newest, but of the version that runs it, and on
standard error what is left out and why. pyenv's are found by their folder: its commands on the path run none but those
of its present choice.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def versions() -> list[str]:
    """All that pyproject.toml allows, oldest first."""
    allowed = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["requires-python"]
    first, end = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", allowed).groups())
    return [f"3.{minor}" for minor in range(first, end)]


def found(version: str) -> str | None:
    """The path of a Python of a version ("3.14") that can make environments; None: this machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    paths = [*map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
    return next((path for path in paths if path and _makes_environments(path)), None)


def _makes_environments(path: str) -> bool:
    return not subprocess.run([path, "-c", "import ensurepip, ssl, venv"], capture_output=True, check=False).returncode


def main() -> None:
    """Print them."""
    own = "{}.{}".format(*sys.version_info)
    here = {own: sys.executable, **{version: path for version in versions() if (path := found(version))}}
    ends = min(here), max(here)
    for version in versions():
        if version not in here:
            print(f"Python {version}: none on this machine", file=sys.stderr)
        elif version == own:
            print(f"Python {version}: all other tests run on it", file=sys.stderr)
        elif version not in ends:
            print(f"Python {version}: neither the oldest nor the newest here", file=sys.stderr)
        else:
            print(version, here[version])


if __name__ == "__main__":
    main()
