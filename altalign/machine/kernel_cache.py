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

    `NUMBA_CACHE_DIR` is a place that it is told. Whoever imports kernels and calls none does not compile them.

    Raises:
        UsageError: not even temporary files can be written.
    """
    import tempfile  # a hundredth of a second, which other commands need not wait for

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "numba")
    told = os.environ.get("NUMBA_CACHE_DIR")
    places = [*([Path(told)] if told else []), package / "filters" / "__pycache__", home]
    if (found := next(filter(_can_write, places), None)) is not None:
        if compiles and next(found.rglob("*.nbi"), None) is None:
            with suppress(FileExistsError):
                (found / "compiling-was-said").touch(exist_ok=False)
                sys.stderr.write("compiling kernels, once for this installation: about 20 s\n")
        return
    try:
        folder = tempfile.mkdtemp(prefix="altalign-kernels-")
    except OSError as error:
        raise UsageError(
            f"no folder for compiled kernels can be written ({error}); set NUMBA_CACHE_DIR to one that can"
        ) from None
    os.environ["NUMBA_CACHE_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    where = " nor ".join(str(place) for place in places)
    sys.stderr.write(
        f"neither {where} can be written, so kernels are compiled each time, for about 20 s; set NUMBA_CACHE_DIR to a "
        "folder that can\n"
    )


def _can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, tried as Numba tries it."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
