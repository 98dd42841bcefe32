"""Prepares a process of a command before libraries are loaded, and looks for a place for compiled kernels."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from altalign.errors import UsageError

_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # malloc.h


def prepare() -> None:
    """Prepare a process that is ours, before anything else.

    NumPy's BLAS starts no threads of its own: units have theirs. Allocators keep pages; where addresses are limited,
    they reserve few.
    """
    import ctypes

    variables = {"OPENBLAS_NUM_THREADS": "1"}
    options = dict[int, int]()  # of glibc's allocator
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        variables["MIMALLOC_ARENA_RESERVE"] = "65536"  # Arrow's; KiB, instead of 1 GiB
        options[_M_ARENA_MAX] = 2  # each reserves 64 MiB, and every thread would have one
    elif sys.platform == "linux":
        # the text stages get buffers of the same sizes again and again, and clearing their pages anew takes time
        variables |= {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc", "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:10000"}
        options |= {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 64 << 20}  # the former: the most that it takes
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, number in options.items():
            mallopt(option, number)


def place_kernels(package: Path = Path(__file__).parents[1]) -> None:
    """See that kernels can be kept before they are imported, as Numba fails where they cannot.

    `NUMBA_CACHE_DIR` comes first, then the package, then the user's cache; UsageError where none can be written.
    """
    import tempfile  # a hundredth of a second, which other commands need not wait for

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "numba")
    named = [Path(name)] if (name := os.environ.get("NUMBA_CACHE_DIR")) else []
    for folder in (*named, package / "filters" / "__pycache__", home):
        with suppress(OSError):  # tried as Numba tries it
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return
    raise UsageError("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can")
