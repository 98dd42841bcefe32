"""Where compiled kernels stay between commands: in the checkout, or in the user's cache.

Where neither can be written, they stay only as long as the command.
"""

import atexit
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from altalign.errors import UsageError


def settle(package: Path = Path(__file__).parents[1], *, compiles: bool = True) -> None:
    """Choose where kernels are kept. Called before they are imported, because Numba fails if it finds no place.

    `NUMBA_CACHE_DIR` comes first. `compiles` says whether kernels are called, which compiles them the first time.

    Raises:
        UsageError: not even temporary files can be written.
    """
    import tempfile  # a hundredth of a second, which other commands need not wait for

    def can_write(folder: Path) -> bool:  # tried as Numba tries it
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            return False
        return True

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "numba")
    named = [Path(name)] if (name := os.environ.get("NUMBA_CACHE_DIR")) else []
    places = [*named, package / "filters" / "__pycache__", home]
    folder = next(filter(can_write, places), None)
    if folder is None:
        try:
            os.environ["NUMBA_CACHE_DIR"] = temporary = tempfile.mkdtemp(prefix="altalign-kernels-")
        except OSError as error:
            raise UsageError(
                f"no folder for compiled kernels can be written ({error}); set NUMBA_CACHE_DIR to one that can"
            ) from None
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        where = " nor ".join(map(str, places))
        sys.stderr.write(
            f"neither {where} can be written, so kernels are compiled each time, for about 20 s; set NUMBA_CACHE_DIR "
            "to a folder that can\n"
        )
    elif compiles and next(folder.rglob("*.nbi"), None) is None:
        with suppress(FileExistsError):  # another process has said so
            (folder / "compiling-was-said").touch(exist_ok=False)
            sys.stderr.write("compiling kernels, once for this installation: about 20 s\n")
