"""The kernel behind `filters.words.scan`: words, n-grams and their hashes, over the buffers of an Arrow array.

A block of rows is copied to scratch memory, folded, and each byte gets a sign (below). Words are then runs of bytes without
`GAP`, cut before `BREAK`; they are found 64 bytes at a time and hashed 8 bytes at a time. A row whose words are not its own
bytes (format characters inside, a typographic apostrophe, lower case of another length) is written anew behind the block.
"""

import numpy as np
from numba import njit

from filters import unicode_data
from filters.bits import LOW_BYTES, PADDING, any_bit64, equal64, first_bit, load64
from filters.utf8 import decode, encode, entry_of

GAP = np.uint8(0x80)  # the byte belongs to no word
BREAK = np.uint8(0x40)  # no word goes on across here
WEAK = np.uint8(0x01)  # a mark, connector or apostrophe, which alone makes no word

LETTER, MARK, NUMBER, CONNECTOR = unicode_data.LETTER, unicode_data.MARK, unicode_data.NUMBER, unicode_data.CONNECTOR
FORMAT, SINGLE, FOLD = unicode_data.FORMAT, unicode_data.SINGLE, unicode_data.FOLD
STRONG = LETTER | NUMBER
EXTENDS_SINGLE = MARK | unicode_data.MODIFIER_LETTER
APOSTROPHE, TYPOGRAPHIC_APOSTROPHE = 0x27, 0x2019
NON_ASCII, ASCII_APOSTROPHE = np.uint8(0x80), np.uint8(APOSTROPHE)

BLOCK_ROWS = 1024
BLOCK_BYTES = 1 << 15  # text, signs and words of a block stay in the core's own cache
NOWHERE = np.int64(1) << 62

MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # Stafford's variant 13 of the MurmurHash3 finaliser
STEP_1, STEP_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)  # primes with about half of their bits set
BIGRAM = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(nogil=True, cache=True)
def mix(h: int) -> int:
    """A bijection of uint64 in which every bit depends on every bit."""
    h = (h ^ (h >> np.uint64(30))) * MIX_1
    h = (h ^ (h >> np.uint64(27))) * MIX_2
    return h ^ (h >> np.uint64(31))


@njit(nogil=True, cache=True)
def hash_word(text: np.ndarray, start: int, size: int) -> int:
    """Hash of a word of at least one byte; words of up to 8 bytes have none in common."""
    h = mix(load64(text, start) & LOW_BYTES[min(size, 8)])
    at = 8
    while at < size:
        h = mix(h ^ (load64(text, start + at) & LOW_BYTES[min(size - at, 8)]))
        at += 8
    return h


@njit(nogil=True, cache=True)
def _step(lane: int, word: int) -> int:
    lane += word * STEP_2
    return (lane << np.uint64(31) | lane >> np.uint64(33)) * STEP_1


@njit(nogil=True, cache=True)
def hash_text(text: np.ndarray, start: int, size: int) -> int:
    """Hash of a whole folded caption: two lanes of 8 bytes a step, the last step padded with zeros."""
    left, right = STEP_1, STEP_2
    at = start
    for _ in range(size >> 4):
        left, right = _step(left, load64(text, at)), _step(right, load64(text, at + 8))
        at += 16
    rest = size & 15
    left = _step(left, load64(text, at) & LOW_BYTES[min(rest, 8)])
    right = _step(right, load64(text, at + 8) & LOW_BYTES[max(rest - 8, 0)])
    return mix(mix(left + np.uint64(size)) ^ right)


@njit(nogil=True, cache=True)
def _fold_ascii(source: np.ndarray, text: np.ndarray, signs: np.ndarray) -> None:
    # One loop without branches, which the compiler turns into vector code. Non-ASCII bytes are gaps until they are looked at.
    for i in range(source.size):
        byte = source[i]
        byte |= np.uint8(np.uint8(byte - np.uint8(65)) < np.uint8(26)) << np.uint8(5)
        text[i] = byte
        strong = (np.uint8(byte - np.uint8(97)) < np.uint8(26)) | (np.uint8(byte - np.uint8(48)) < np.uint8(10))
        signs[i] = np.uint8(0) if strong else (WEAK if byte == np.uint8(95) else GAP)


@njit(nogil=True, cache=True)
def _sign(entry: int, after_single: bool) -> tuple[int, bool]:
    # Sign of a code point's first byte, and whether what follows stands after a word of a script without spaces.
    if after_single and entry & EXTENDS_SINGLE:
        return 0, True
    if entry & SINGLE:
        return BREAK, True
    cut = BREAK if after_single else 0
    if entry & STRONG:
        return cut, False
    if entry & (MARK | CONNECTOR):
        return cut | WEAK, False
    return GAP, False


@njit(nogil=True, cache=True)
def _joins_next(data: np.ndarray, at: int, end: int, blocks: np.ndarray, entries: np.ndarray) -> bool:
    # Whether the first code point at or after `at` that is no format character is a letter an apostrophe can stand before.
    while at < end:
        point, size = decode(data, at, end)
        entry = entry_of(point, blocks, entries)
        if not entry & FORMAT:
            return entry & LETTER != 0 and entry & SINGLE == 0
        at += size
    return False


@njit(nogil=True, cache=True)
def _is_lower(byte: int) -> bool:
    return 97 <= byte <= 122


@njit(nogil=True, cache=True)
def _look_closer(text: np.ndarray, signs: np.ndarray, start: int, end: int, blocks: np.ndarray, entries: np.ndarray) -> bool:
    # Folds and signs what is not ASCII, and apostrophes, in place; False where the row must be written anew.
    at, chunk = start, start
    joinable = np.int64(-1)  # behind the last letter or mark that is not ASCII and not of a script without spaces
    while chunk < end:
        look = any_bit64(text, chunk, NON_ASCII) | equal64(text, chunk, ASCII_APOSTROPHE)
        look &= ALL << np.uint64(at - chunk)
        if look == 0:
            chunk += 64
            at = chunk
            continue
        at = chunk + first_bit(look)
        if at >= end:
            return True
        if text[at] == APOSTROPHE:
            after_letter = joinable == at or (at > start and _is_lower(text[at - 1]))
            at += 1
            if after_letter and _joins_next(text, at, end, blocks, entries):
                signs[at - 1] = WEAK
        else:
            at, joinable = _look_at_run(text, signs, at, end, joinable, blocks, entries)
            if at < 0:
                return False
        chunk += (at - chunk) & ~63
    return True


@njit(nogil=True, cache=True)
def _look_at_run(text: np.ndarray, signs: np.ndarray, at: int, end: int, joinable: int, blocks: np.ndarray, entries: np.ndarray) -> tuple[int, int]:
    # The same for code points from `at` on, up to the first that is ASCII: where that is (or -1: write anew), and `joinable`.
    after_single = False
    while at < end and text[at] >= 0x80:
        point, size = decode(text, at, end)
        entry = entry_of(point, blocks, entries)
        after = at + size
        if entry & FORMAT or (point == TYPOGRAPHIC_APOSTROPHE and after < end and (text[after] >= 0x80 or _is_lower(text[after]))):
            return -1, joinable
        if entry & FOLD:
            folded = (point + entry) & FOLD
            if folded < 0x80 or (folded < 0x800) != (size == 2) or (folded < 0x10000) == (size == 4):
                return -1, joinable
            encode(folded, text, at)
        sign, after_single = _sign(entry, after_single)
        signs[at] = sign | (signs[at] & BREAK)
        for i in range(at + 1, after):
            signs[i] = sign & ~BREAK
        at = after
        if entry & (LETTER | MARK) and not after_single:
            joinable = at
    if after_single:
        signs[at] |= BREAK
    return at, joinable


@njit(nogil=True, cache=True)
def _write_anew(source: np.ndarray, text: np.ndarray, signs: np.ndarray, at: int, blocks: np.ndarray, entries: np.ndarray) -> tuple[int, int]:
    # Folded text from `at` on, all gaps; behind it the words' own bytes. Returns where the text and where the words end.
    end = source.size
    words_at = at + end + (end >> 1) + 8  # the longest growth is from 2 bytes to 3
    signs[at:words_at] = GAP
    text_to, to, here = at, words_at, 0
    after_single, joinable = False, False
    while here < end:
        point, size = decode(source, here, end)
        entry = entry_of(point, blocks, entries)
        if point < 0:
            text[text_to] = source[here]
            text_to += 1
        else:
            point = (point + entry) & FOLD
            text_to += encode(point, text, text_to)
        here += size
        if entry & FORMAT:
            continue
        if (point == APOSTROPHE or point == TYPOGRAPHIC_APOSTROPHE) and joinable and _joins_next(source, here, end, blocks, entries):
            text[to] = APOSTROPHE
            signs[to] = WEAK
            to += 1
            joinable = False
            continue
        sign, after_single = _sign(entry, after_single)
        size = encode(max(point, 0), text, to)
        signs[to] = sign
        for i in range(to + 1, to + size):
            signs[i] = sign & ~BREAK
        to += size
        joinable = entry & (LETTER | MARK) != 0 and not after_single
    return text_to, to


@njit(nogil=True, cache=True)
def _find_words(signs: np.ndarray, end: int, starts: np.ndarray, stops: np.ndarray) -> int:
    # Where words start and stop among the first `end` signs, a multiple of 64 with a gap at its end. Returns how many.
    n_starts, n_stops = 0, 0
    carry = np.uint64(0)
    for chunk in range(0, end, 64):
        runs = ~any_bit64(signs, chunk, GAP)
        breaks = any_bit64(signs, chunk, BREAK)
        before = runs << np.uint64(1) | carry
        carry = runs >> np.uint64(63)
        bits = runs & (~before | breaks)
        while bits:
            starts[n_starts] = chunk + first_bit(bits)
            n_starts += 1
            bits &= bits - np.uint64(1)
        bits = before & (~runs | breaks)
        while bits:
            stops[n_stops] = chunk + first_bit(bits)
            n_stops += 1
            bits &= bits - np.uint64(1)
    starts[n_starts] = NOWHERE
    return n_starts


@njit(nogil=True, cache=True)
def _is_weak(signs: np.ndarray, start: int, stop: int) -> bool:
    for i in range(start, stop):
        if not signs[i] & WEAK:
            return False
    return True


@njit(nogil=True, cache=True)
def _hash_words(
    text: np.ndarray, signs: np.ndarray, starts: np.ndarray, stops: np.ndarray, k: int, end: int, ngrams: np.ndarray, made: int
) -> tuple[int, int]:
    # N-grams of one row: its words are those from the k-th on that start before `end`. Returns the new `made` and k.
    n, previous = 0, np.uint64(0)
    while starts[k] < end:
        start, stop = starts[k], stops[k]
        k += 1
        if signs[start] & WEAK and _is_weak(signs, start, stop):
            continue
        h = hash_word(text, start, stop - start)
        ngrams[made] = h
        ngrams[made + 1] = mix((previous * BIGRAM) ^ h)  # of the first word: overwritten by the next row
        made += 2 if n else 1
        n += 1
        previous = h
    return made, k


@njit(nogil=True, cache=True)
def scan_rows(
    data: np.ndarray,
    offsets: np.ndarray,
    blocks: np.ndarray,
    entries: np.ndarray,
    text: np.ndarray,
    signs: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    words: np.ndarray,
    texts: np.ndarray,
    ngrams: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Fill words, texts, ngrams and ends (as `filters.words.Scan` has them) for the rows between the offsets.

    Shapes: data uint8[bytes], offsets int64[n + 1], blocks and entries of the Unicode table, text and signs uint8[scratch], starts
    and stops int64[scratch]; scratch is what `filters.words` reserves for the longest block.
    """
    rows = offsets.size - 1
    where = np.empty((BLOCK_ROWS, 4), np.int64)  # of each row: text from, text to, whether written anew, words to
    first, made = 0, 0
    while first < rows:
        last = first + 1
        while last < rows and last - first < BLOCK_ROWS and offsets[last + 1] - offsets[first] <= BLOCK_BYTES:
            last += 1
        end, split = _prepare(data, offsets[first : last + 1], text, signs, where, blocks, entries)
        _find_words(signs, end, starts, stops)
        here, moved = 0, 0
        while starts[moved] < split:
            moved += 1
        for row in range(first, last):
            is_moved = where[row - first, 2] != 0
            made, k = _hash_words(text, signs, starts, stops, moved if is_moved else here, where[row - first, 3], ngrams, made)
            if is_moved:
                moved = k
            else:
                here = k
            words[row] = (made - (ends[row - 1] if row else 0) + 1) >> 1
            texts[row] = hash_text(text, where[row - first, 0], where[row - first, 1] - where[row - first, 0])
            ends[row] = made
        first = last


@njit(nogil=True, cache=True)
def _prepare(
    data: np.ndarray, offsets: np.ndarray, text: np.ndarray, signs: np.ndarray, where: np.ndarray, blocks: np.ndarray, entries: np.ndarray
) -> tuple[int, int]:
    # Text and signs of a block, and where each row's are. Returns the end of all, and where rows written anew begin.
    base = offsets[0]
    size = offsets[-1] - base
    _fold_ascii(data[base : offsets[-1]], text, signs)
    split = (size + PADDING) & ~63
    signs[size:split] = GAP
    for row in range(offsets.size):
        signs[offsets[row] - base] |= BREAK
    to = split
    for row in range(offsets.size - 1):
        start, stop = offsets[row] - base, offsets[row + 1] - base
        where[row, 0], where[row, 1], where[row, 2], where[row, 3] = start, stop, 0, stop
        if not _look_closer(text, signs, start, stop, blocks, entries):
            signs[start:stop] = GAP
            signs[stop] |= BREAK
            text_end, words_end = _write_anew(data[offsets[row] : offsets[row + 1]], text, signs, to, blocks, entries)
            where[row, 0], where[row, 1], where[row, 2], where[row, 3] = to, text_end, 1, words_end
            to = words_end
            signs[to] = GAP
            to += 1
    end = (to + PADDING) & ~63
    signs[to:end] = GAP
    return end, split
