"""Random draws of training in plain integers of Python: the slow twins of `altalign.train.data.order`."""

GOLDEN, ALL_BITS = 0x9E3779B97F4A7C15, 2**64 - 1


def plain_mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & ALL_BITS
    word = (word ^ word >> 27) * 0x94D049BB133111EB & ALL_BITS
    return word ^ word >> 31


def plain_keyed(*parts: int) -> int:
    """The slow twin of `keyed`."""
    key = 0
    for part in parts:
        key = plain_mix((key ^ part & ALL_BITS) + GOLDEN & ALL_BITS)
    return key


def plain_round(half: int, key: int, number: int) -> int:
    return plain_mix(plain_mix(half + key & ALL_BITS) ^ GOLDEN * (number + 1) & ALL_BITS) >> 16


def plain_permuted(place: int, size: int, key: int) -> int:
    """The slow twin of `permuted`."""
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    while True:
        low, high = place & (1 << low_bits) - 1, place >> low_bits
        for number in range(8):
            if number % 2 == 0:
                low ^= plain_round(high, key, number) & (1 << low_bits) - 1
            else:
                high ^= plain_round(low, key, number) & (1 << bits - low_bits) - 1
        place = high << low_bits | low
        if place < size:
            return place


def halves(key: str) -> tuple[int, int]:
    """A sample's key as two words."""
    return int(key[:16], 16), int(key[16:], 16)
