"""Block lists: hashes of images, or of URLs, that must not be in a data set. Pure: reads lists from text, and looks up.

A list has one hash per line, in hex of either case; `#` begins a comment, and blank lines are ignored. The length tells
hashes of bytes (an image as found, or a URL): SHA-256 has 64 digits, SHA-1 has 40, MD5 has 32. A PDQ hash, which also
has 64 digits and is of an image alone, is written `pdq:` and the digits; `sha256:`, `sha1:` and `md5:` are allowed
likewise. This gives prefixes to a list of PDQ hashes alone: `sed 's/^/pdq:/' list > list-with-prefixes`.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError
from altalign.filters import one_url

# Hamming distance (of 256 bits) and quality (0 to 100) that PDQ's authors recommend to start with: a match is <= 31,
# and hashes of quality <= 49 are discarded. See https://github.com/facebook/ThreatExchange/tree/main/pdq and
# hashing.pdf in it.
PDQ_DISTANCE_AT_MOST = 31
PDQ_QUALITY_AT_LEAST = 50
# Measured on 95 photographs of 720 px: bits that differ from the hash of a full RGB decode (median, greatest) are
# 16, 44 for gray decoded to at least 128 px; 6, 20 for 256 px; 4, 16 for 512 px. At 128 px the decoding alone can hide
# an image.
PDQ_SHORT_SIDE_PX = 512

_LINE = re.compile(r"(?:(?P<kind>[a-z0-9]+):)?\s*(?P<digits>[0-9a-f]+)")
_DIGITS = {"sha256": 64, "sha1": 40, "md5": 32, "pdq": 64}
_BY_LENGTH = {64: "sha256", 40: "sha1", 32: "md5"}


@dataclass(frozen=True, eq=False)
class BlockList:
    """The hashes of all lists of a run: those of bytes by kind, in lower-case hex digits; of PDQ, uint64[hashes, 4]."""

    digests: dict[str, frozenset[str]] = field(default_factory=dict)
    pdq: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 4), np.uint64))

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]], *, of_urls: bool = False) -> "BlockList":
        """Read lists, each given as (name for errors, its text); those of URLs have no PDQ hashes."""
        hashes: dict[str, set[str]] = {kind: set() for kind in _DIGITS}
        for name, text in texts:
            for number, line in enumerate(text.splitlines(), start=1):
                entry = line.partition("#")[0].strip().lower()
                if entry:
                    kind, digits = _hash(entry, where=f"{name} line {number}", of_urls=of_urls)
                    hashes[kind].add(digits)
        pdq = np.frombuffer(bytes.fromhex("".join(sorted(hashes.pop("pdq")))), ">u8").astype(np.uint64).reshape(-1, 4)
        return cls({kind: frozenset(each) for kind, each in hashes.items() if each}, pdq)

    def __len__(self) -> int:
        return sum(map(len, self.digests.values())) + len(self.pdq)

    def names(self, data: bytes, *, sha256: str = "") -> bool:
        """Whether a hash of these bytes is listed; `sha256` is theirs where it is known already."""
        known = {"sha256": sha256} if sha256 else {}
        return any(
            (known.get(kind) or hashlib.new(kind, data, usedforsecurity=False).hexdigest()) in listed
            for kind, listed in self.digests.items()
        )

    def names_url(self, url: str) -> bool:
        """Whether a hash of this URL is listed, as it is written or as it is asked for."""
        return any(self.names(each.encode()) for each in {url, *one_url.request_urls(url)})

    @property
    def short_side_px(self) -> int:
        """The short side, at least, to which images must be decoded (`pixels.decode`); 0 if pixels are not needed."""
        return PDQ_SHORT_SIDE_PX if len(self.pdq) else 0

    def blocks(self, *, data: bytes, found_sha256: str, pixels: npt.NDArray[np.uint8] | None) -> bool | None:
        """Whether the list names an image, by its bytes as found, or by its pixels from `pixels.decode`.

        None if the bytes are not on the list and there are no pixels to compute a PDQ hash from.
        """
        if self.names(data, sha256=found_sha256):
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
    """PDQ hash (uint64[4], most significant bits first, as in hex) and quality (0 to 100) of gray or RGB pixels."""
    import pdqhash  # optional: only lists with PDQ hashes need it, and loading such a list checks that it is installed

    rgb = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
    bits, quality = pdqhash.compute(np.ascontiguousarray(rgb))
    return np.packbits(bits.astype(np.uint8)).view(">u8").astype(np.uint64), int(quality)


def _hash(entry: str, *, where: str, of_urls: bool) -> tuple[str, str]:
    """Kind and digits of a line."""
    match = _LINE.fullmatch(entry)
    digits = match["digits"] if match else ""
    kind = (match and match["kind"]) or _BY_LENGTH.get(len(digits), "")
    if len(digits) != _DIGITS.get(kind) or (kind == "pdq" and of_urls):
        expected = " or 32 (MD5)" if of_urls else ", 32 (MD5), or pdq: and 64 (PDQ)"
        raise UsageError(f"{where}: {entry!r} is no hash; write 64 hex digits (SHA-256), 40 (SHA-1){expected}")
    return kind, digits
