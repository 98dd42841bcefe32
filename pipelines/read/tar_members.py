"""Members of tars, read by tarfile: errors where it would stop in silence, or hold a header of any length."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from tarfile import HeaderError, InvalidHeaderError, ReadError, TruncatedHeaderError, nti, nts  # type: ignore[attr-defined] # not in its stubs
from typing import Any, BinaryIO, cast

from altalign.pipelines.read.stretches import LINE_BYTES, decompressed

NAMES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_BLOCK_BYTES = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20
_MEMBER_BYTES = 1 << 50  # a member beyond this is a header that lies
_LONG_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class _Header(tarfile.TarInfo):
    """A header that is damaged, or has no end, ends the reading with an error.

    Tarfile alone takes the one for the end of the archive, and holds the other whole: a header of names and attributes
    is as long as it says. Extended headers that lie (a map of holes that is none, a size below zero) it lets fail
    anywhere, or turn back in the file.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "tarfile.TarInfo":
        if _is_plain(buf):  # a third of the time: tarfile also reads owners, times and devices
            header = cls(nts(buf[:100], encoding, errors))
            header.size = nti(buf[124:136])
            return header
        return super().frombuf(buf, encoding, errors)

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "tarfile.TarInfo":
        tar: Any = tarfile
        try:  # not by the method of tarfile, which in Python 3.14 calls no `frombuf` of ours
            header: Any = cls.frombuf(tar.fileobj.read(_BLOCK_BYTES), tar.encoding, tar.errors)
            header.offset = tar.fileobj.tell() - _BLOCK_BYTES
            header = header._proc_member(tar)
        except (InvalidHeaderError, TruncatedHeaderError) as error:
            raise ReadError(str(error)) from None
        except HeaderError:  # of the end
            raise
        except (ValueError, LookupError, OverflowError, RecursionError) as error:
            raise ReadError(f"broken extended header: {error}") from None
        if not 0 <= header.size <= _MEMBER_BYTES:
            raise ReadError(f"member of {header.size} bytes")
        return header

    def _proc_member(self, tarfile: tarfile.TarFile) -> "tarfile.TarInfo":
        """Of every header, those behind long names too: tarfile's own place for what subclasses have to add."""
        if self.type in _LONG_HEADERS and not 0 <= self.size <= LINE_BYTES:
            raise ReadError(f"header of {self.size} bytes")
        return cast(Any, super())._proc_member(tarfile)


def _is_plain(buf: bytes | bytearray) -> bool:
    """Whether a header is whole, and of a regular file whose name stands in one piece."""
    if len(buf) != _BLOCK_BYTES or buf[156:157] != tarfile.REGTYPE or buf[345]:
        return False
    checksum = buf[148:156]  # counted as if it were spaces
    return nti(checksum) == sum(buf) - sum(checksum) + 8 * ord(" ")


@contextmanager
def opened(file: BinaryIO) -> Iterator[tuple[tarfile.TarFile, bool]]:
    """The tar in a file, also one behind the zeros that end another, and whether it is compressed.

    Of a compressed one no offset leads to a member. Raises tarfile.TarError, also while members are read: it is none,
    or ends in a member.
    """
    plain, is_compressed = decompressed(file)
    mode: Any = "r|" if is_compressed else "r:"
    with tarfile.open(fileobj=plain, mode=mode, tarinfo=_Header, ignore_zeros=True) as tar:
        yield tar, is_compressed


def content(tar: tarfile.TarFile, member: tarfile.TarInfo, length: int) -> bytes:
    """The first bytes of a member that is a regular file without holes; in pieces, as a header may promise more."""
    file, pieces = cast(BinaryIO, tar.fileobj), io.BytesIO()
    file.seek(member.offset_data)
    while pieces.tell() < length and (piece := file.read(min(length - pieces.tell(), _PIECE_BYTES))):
        pieces.write(piece)
    if pieces.tell() < length:
        raise ReadError("unexpected end of data")
    return pieces.getvalue()


def sha256_of(file: BinaryIO, length: int) -> str:
    """The SHA-256 of so many bytes from a file's position on."""
    digest = hashlib.sha256()
    while length and (piece := file.read(min(length, _PIECE_BYTES))):
        digest.update(piece)
        length -= len(piece)
    return digest.hexdigest()
