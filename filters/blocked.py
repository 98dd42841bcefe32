"""Block lists: hashes of images that must not be in a data set. Pure: text in, a list out, images asked against it.

A list has one hash a line, in hex of either case; `#` begins a comment and blank lines are none. A hash of the bytes as
found is told by its length: 64 digits SHA-256, 32 digits MD5. A PDQ hash, which has 64 digits too, is written `pdq:`
and the digits; `sha256:` and `md5:` may be written likewise. A list of PDQ hashes alone gets its prefixes by `sed
's/^/pdq:/' list > list-with-prefixes`.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError

# Hamming distance of 256 bits, and quality of 0 to 100, that PDQ's authors recommend to start with: matching is <= 31,
# and hashes of a quality <= 49 are to be discarded (https://github.com/facebook/ThreatExchange/tree/main/pdq; the
# algorithm: hashing.pdf there).
PDQ_DISTANCE_AT_MOST = 31
PDQ_QUALITY_AT_LEAST = 50
# Measured on 95 photographs of 720 px, bits that differ from the hash of a full RGB decode (median, greatest): gray
# decoded to at least 128 px 16, 44; 256 px 6, 20; 512 px 4, 16. At 128 px an image would be missed for its decoding
# alone.
PDQ_SHORT_SIDE_PX = 512

_LINE = re.compile(r"(?:(?P<kind>[a-z0-9]+):)?\s*(?P<digits>[0-9a-f]+)")
_DIGITS = {"sha256": 64, "md5": 32, "pdq": 64}


@dataclass(frozen=True, eq=False)
class BlockList:
    """The hashes of all lists of a run.

    Attributes:
        sha256: 64 lower-case hex digits each, of the bytes as found.
        md5: 32 each, the same.
        pdq: uint64 of shape (hashes, 4).
    """

    sha256: frozenset[str] = frozenset()
    md5: frozenset[str] = frozenset()
    pdq: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 4), np.uint64))

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]]) -> "BlockList":
        """Read lists, each given as (name for errors, its text).

        Raises:
            UsageError: a line is no hash, naming the list and the line.
        """
        found: dict[str, set[str]] = {kind: set() for kind in _DIGITS}
        for name, text in texts:
            for number, line in enumerate(text.splitlines(), start=1):
                entry = line.partition("#")[0].strip().lower()
                if entry:
                    kind, digits = _hash(entry, where=f"{name} line {number}")
                    found[kind].add(digits)
        pdq = np.array([_from_hex(digits) for digits in sorted(found["pdq"])], np.uint64).reshape(-1, 4)
        return cls(frozenset(found["sha256"]), frozenset(found["md5"]), pdq)

    def __len__(self) -> int:
        return len(self.sha256) + len(self.md5) + len(self.pdq)

    @property
    def short_side_px(self) -> int:
        """What an image has to be decoded to at least (`altalign.filters.pixels.decode`); 0 where nobody asks for pixels."""
        return PDQ_SHORT_SIDE_PX if len(self.pdq) else 0

    def blocks(self, *, data: bytes, found_sha256: str, pixels: npt.NDArray[np.uint8] | None) -> bool | None:
        """Whether the list names an image.

        Args:
            data: its bytes as found.
            found_sha256: their SHA-256, lower-case hex.
            pixels: as `altalign.filters.pixels.decode` gives them; None: it was not decoded.

        Returns:
            None where the bytes are not on the list and a PDQ hash could not be asked for want of pixels.
        """
        if found_sha256 in self.sha256 or (
            self.md5 and hashlib.md5(data, usedforsecurity=False).hexdigest() in self.md5
        ):
            return True
        if not len(self.pdq):
            return False
        if pixels is None:
            return None
        hashed, quality = pdq(pixels)
        if quality < PDQ_QUALITY_AT_LEAST:
            return False
        return bool(np.bitwise_count(self.pdq ^ hashed).sum(axis=1).min() <= PDQ_DISTANCE_AT_MOST)


def pdq(pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], int]:
    """PDQ hash (uint64 of shape (4,), most significant bits first, as in its hex form) and quality (0 to 100) of gray or RGB pixels."""
    import pdqhash  # an extra: only a list with PDQ hashes asks for it, and its loading has checked that it is there

    rgb = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
    bits, quality = pdqhash.compute(np.ascontiguousarray(rgb))
    return np.packbits(bits.astype(np.uint8)).view(">u8").astype(np.uint64), int(quality)


def _from_hex(digits: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64)


def _hash(entry: str, *, where: str) -> tuple[str, str]:
    """Kind and digits of a line."""
    wanted = "write 64 hex digits (SHA-256), 32 (MD5), or pdq: and 64 (PDQ)"
    match = _LINE.fullmatch(entry)
    if match is None:
        raise UsageError(f"{where}: {entry!r} is no hash; {wanted}")
    digits = match["digits"]
    kind = match["kind"] or {64: "sha256", 32: "md5"}.get(len(digits), "")
    if kind not in _DIGITS or len(digits) != _DIGITS[kind]:
        raise UsageError(f"{where}: {entry!r} has {len(digits)} hex digits{f' of {kind}' if kind else ''}; {wanted}")
    return kind, digits
