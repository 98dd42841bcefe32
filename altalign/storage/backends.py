"""Which module has the functions for a path: `local`, `objects` or `web`, which have functions of the same names."""

from typing import Any

from altalign.storage import local
from altalign.storage.paths import is_of_web, is_remote


def at(path: str) -> Any:
    """The module of a path; that of the web only reads."""
    if not is_remote(path):
        return local
    if is_of_web(path):
        from altalign.storage import web

        return web
    # Arrow, and a client of the store: a third of a second that local runs need not wait for
    from altalign.storage import objects

    return objects


def reader(path: str) -> Any:
    """The module that reads a file; stores and the web have one."""
    if not is_remote(path):
        return local
    from altalign.storage import reading

    return reading
