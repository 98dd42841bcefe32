"""Random bits that are a function of numbers: of a seed, an epoch, a key, and of what they are for."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

GOLDEN = 0x9E3779B97F4A7C15
ALL_BITS = 2**64 - 1


def mix(words: Words) -> Words:
    """Scrambles 64 bits, one to one (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keyed(*parts: "int | Words | Numbers") -> Words:
    """64 random bits of some numbers, which broadcast: uint64 of their shape."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        word = np.uint64(part & ALL_BITS) if isinstance(part, int) else part.astype(np.uint64)
        key = mix((key ^ word) + np.uint64(GOLDEN))
    return key


def of_visit(seed: int, epoch: int, key: str, *what: "int | Numbers") -> Words:
    """64 random bits of a visit of a pair, by its key of 32 hex digits, and of what they are for."""
    number = int(key, 16)
    return keyed(seed, epoch, number >> 64, number, *what)
