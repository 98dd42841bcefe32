"""Tars of members."""

import io
import tarfile
from collections.abc import Iterable


def tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar of files by name, as Python's tarfile writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()
