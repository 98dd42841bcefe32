"""The kernel behind `altalign.filters.words.scan`: words, n-grams and their hashes, over the buffers of an Arrow array.

A block of rows is copied to scratch memory and folded, and each byte gets a sign (below). Words are then runs of bytes
without `GAP`, cut before `BREAK`; they are found 64 bytes at a time and hashed 8 bytes at a time. A row whose words are
not its own bytes (it has format characters, a typographic apostrophe, or lower case of another length) is written anew
after the block.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.filters import bits, unicode_data
from altalign.filters.bits import Bytes, Hashes, Longs, address_of, fill, load8, load64, load_index, store8, store64
from altalign.filters.one_caption import BIGRAM, MIX_1, MIX_2
from altalign.filters.unicode_data import CONNECTOR, FOLD, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE
from altalign.filters.utf8 import decode, encode, entry_of

# primes with about half of their bits set
STEP_1, STEP_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)

GAP = 0x80  # the byte belongs to no word
BREAK = 0x40  # a word ends before this byte
WEAK = 0x01  # a mark, connector or apostrophe; a word needs more than these
GAP_BIT, BREAK_BIT, WEAK_BYTE = np.uint8(GAP), np.uint8(BREAK), np.uint8(WEAK)

APOSTROPHE, TYPOGRAPHIC_APOSTROPHE = 0x27, 0x2019
FIRST_LEAD, ASCII_APOSTROPHE = np.uint8(0xC0), np.uint8(APOSTROPHE)

BLOCK_ROWS = 1024
BLOCK_BYTES = 1 << 15  # text, signs and words of a block stay in the core's own cache
NOWHERE = np.uint64(1 << 62)


@njit(nogil=True)
def mix(h: np.uint64) -> np.uint64:
    """A bijection of uint64 in which every bit depends on every bit."""
    h = (h ^ (h >> np.uint64(30))) * MIX_1
    h = (h ^ (h >> np.uint64(27))) * MIX_2
    return h ^ (h >> np.uint64(31))


@njit(nogil=True)
def hash_word(text: int, start: int, size: int) -> np.uint64:
    """Hash of a word of at least one byte; any two words of up to 8 bytes differ."""
    h = mix(load64(text, start) & bits.LOW_BYTES[min(size, 8)])
    longer = mix(h ^ (load64(text, start + 8) & bits.LOW_BYTES[min(max(size - 8, 0), 8)]))
    h = longer if size > 8 else h  # computed in any case: a branch on the size would often be mispredicted
    at = 16
    while at < size:
        h = mix(h ^ (load64(text, start + at) & bits.LOW_BYTES[min(size - at, 8)]))
        at += 8
    return h


@njit(nogil=True)
def _step(lane: np.uint64, word: np.uint64) -> np.uint64:
    lane += word * STEP_2
    return (lane << np.uint64(31) | lane >> np.uint64(33)) * STEP_1


@njit(nogil=True)
def hash_text(text: int, start: int, size: int) -> np.uint64:
    """Hash of a whole folded caption: two lanes of 8 bytes a step, the last step padded with zeros."""
    left, right = STEP_1, STEP_2
    at = start
    for _ in range(size >> 4):
        left, right = _step(left, load64(text, at)), _step(right, load64(text, at + 8))
        at += 16
    rest = size & 15
    left = _step(left, load64(text, at) & bits.LOW_BYTES[min(rest, 8)])
    right = _step(right, load64(text, at + 8) & bits.LOW_BYTES[max(rest - 8, 0)])
    return mix(mix(left + np.uint64(size)) ^ right)


@njit(nogil=True)
def _fold_ascii(source: Bytes, text: Bytes, signs: Bytes) -> None:
    # A loop without branches, which the compiler makes vector code of. Non-ASCII bytes are gaps for now.
    for i in range(source.size):
        byte = source[i]
        byte = np.uint8(byte + np.uint8(32)) if np.uint8(byte - np.uint8(65)) < np.uint8(26) else byte
        text[i] = byte
        strong = (np.uint8(byte - np.uint8(97)) < np.uint8(26)) | (np.uint8(byte - np.uint8(48)) < np.uint8(10))
        signs[i] = np.uint8(0) if strong else (WEAK_BYTE if byte == np.uint8(95) else GAP_BIT)


@njit(nogil=True)
def _sign(entry: int, after_single: int) -> tuple[int, bool]:
    # Sign of a code point's first byte, and whether the next one follows a word of a script without spaces.
    if after_single and entry & (MARK | MODIFIER_LETTER):
        return 0, True
    if entry & SINGLE:
        return BREAK, True
    cut = BREAK if after_single else 0
    if entry & (LETTER | NUMBER):
        return cut, False
    if entry & (MARK | CONNECTOR):
        return cut | WEAK, False
    return GAP, False


@njit(nogil=True)
def _joins_next(data: int, at: int, end: int, blocks: int, entries: int) -> bool:
    # Whether an apostrophe can join what comes at `at`: past format characters, a letter of a script with spaces.
    while at < end:
        point, size = decode(data, at, end)
        entry = entry_of(point, blocks, entries)
        if not entry & FORMAT:
            return entry & LETTER != 0 and entry & SINGLE == 0
        at += size
    return False


@njit(nogil=True)
def _is_lower(byte: int) -> bool:
    return 97 <= byte <= 122


@njit(nogil=True)
def _look_closer(text: int, signs: int, start: int, end: int, blocks: int, entries: int) -> bool:
    # Folds and signs non-ASCII characters and apostrophes in place; False if the row must be written anew.
    # Ends of the last word of a script without spaces, and of the last other letter or mark.
    single, joinable = np.int64(-1), np.int64(-1)
    for chunk in range(start, end, 64):
        look = ~bits.below64(text, chunk, FIRST_LEAD) | bits.equal64(text, chunk, ASCII_APOSTROPHE)
        look &= bits.first64(end - chunk)
        while look:
            at = chunk + bits.first_bit(look)
            look &= look - np.uint64(1)
            lead, second = load8(text, at), load8(text, at + 1) ^ 0x80
            if lead == APOSTROPHE:
                is_after_letter = joinable == at or (at > start and _is_lower(load8(text, at - 1)))
                if is_after_letter and _joins_next(text, at + 1, end, blocks, entries):
                    store8(signs, at, WEAK)
                continue
            # A short cut for Latin, Greek, Cyrillic, Arabic and others.
            if 0xC2 <= lead < 0xE0 and second < 0x40 and at + 1 < end and single != at:
                entry = bits.load32(entries, (bits.load16(blocks, (lead & 0x1F) * 2) << 6 | second) * 4)
                if entry & (LETTER | FOLD) == LETTER:
                    store8(signs, at, load8(signs, at) & BREAK)
                    store8(signs, at + 1, 0)
                    joinable = at + 2
                    continue
            point, size = decode(text, at, end)
            entry, after = entry_of(point, blocks, entries), at + size
            may_join = after < end and (load8(text, after) >= 0x80 or _is_lower(load8(text, after)))
            if entry & FORMAT or (point == TYPOGRAPHIC_APOSTROPHE and may_join):
                return False
            if entry & FOLD:
                folded = (point + entry) & FOLD
                if folded < 0x80 or (folded < 0x800) != (size == 2) or (folded < 0x10000) == (size == 4):
                    return False
                encode(folded, text, at)
            sign, is_single = _sign(entry, single == at)
            store8(signs, at, sign if single == at else sign | (load8(signs, at) & BREAK))
            for i in range(at + 1, after):
                store8(signs, i, sign & ~BREAK)
            if is_single:
                store8(signs, after, load8(signs, after) | BREAK)
                single = after
            elif entry & (LETTER | MARK):
                joinable = after
    return True


@njit(nogil=True)
def _write_anew(
    data: int, here: int, end: int, text: int, signs: int, at: int, blocks: int, entries: int
) -> tuple[int, int]:
    # Writes the folded text at `at`, all gaps, and after it the bytes of the words. Returns where text and words end.
    words_at = at + (end - here) * 3 // 2 + 1  # the longest growth is from 2 bytes to 3
    fill(signs + at, words_at - at, GAP_BIT)
    to = words_at
    after_single, joinable = False, False
    while here < end:
        point, size = decode(data, here, end)
        entry = entry_of(point, blocks, entries)
        if point < 0:
            store8(text, at, load8(data, here))
            at += 1
        else:
            point = (point + entry) & FOLD
            at += encode(point, text, at)
        here += size
        if entry & FORMAT:
            continue
        sign, after_single = _sign(entry, after_single)
        is_apostrophe = point in (APOSTROPHE, TYPOGRAPHIC_APOSTROPHE)
        if is_apostrophe and joinable and _joins_next(data, here, end, blocks, entries):
            point, sign = APOSTROPHE, WEAK
        size = encode(max(point, 0), text, to)
        store8(signs, to, sign)
        for i in range(to + 1, to + size):
            store8(signs, i, sign & ~BREAK)
        to += size
        joinable = entry & (LETTER | MARK) != 0 and not after_single
    return at, to


@njit(nogil=True)
def _find_words(signs: int, end: int, starts: int, stops: int) -> None:
    # Writes where words start and stop (uint64) in the first `end` signs; `end` is a multiple of 64, after a gap.
    carry = np.uint64(0)
    for chunk in range(0, end, 64):
        runs = ~bits.any_bit64(signs, chunk, GAP_BIT)
        breaks = bits.any_bit64(signs, chunk, BREAK_BIT)
        before = runs << np.uint64(1) | carry
        carry = runs >> np.uint64(63)
        starts = _write_places(runs & (~before | breaks), chunk, starts)
        stops = _write_places(before & (~runs | breaks), chunk, stops)
    store64(starts, 0, NOWHERE)


@njit(nogil=True)
def _write_places(set_bits: np.uint64, base: int, to: int) -> int:
    # Writes `base` plus the place of each bit; returns the address after the last. It always writes 12, for a branch on
    # their number would be mispredicted.
    end = to + 8 * bits.count_bits(set_bits)
    for i in range(12):
        store64(to, i * 8, np.uint64(base + bits.first_bit(set_bits)))
        set_bits &= set_bits - np.uint64(1)
    to += 96
    while set_bits:
        store64(to, 0, np.uint64(base + bits.first_bit(set_bits)))
        to += 8
        set_bits &= set_bits - np.uint64(1)
    return end


@njit(nogil=True)
def _hash_words(
    text: int, signs: int, starts: int, stops: int, k: int, end: int, ngrams: int, made: int
) -> tuple[int, int]:
    # Writes the n-grams of one row, whose words are those from word k on that start before `end`. Returns the new
    # `made` and k.
    n, previous = 0, np.uint64(0)
    while True:
        begin, stop = load_index(starts, k), load_index(stops, k)
        if begin >= end:
            return made, k
        start = begin
        k += 1
        while start < stop and load8(signs, start) & WEAK:
            start += 1
        if start == stop:
            continue
        h = hash_word(text, begin, stop - begin)
        store64(ngrams, made * 8, h)
        store64(ngrams, made * 8 + 8, mix((previous * BIGRAM) ^ h))  # the first word's is overwritten
        made += 2 if n else 1
        n += 1
        previous = h


@njit(nogil=True, cache=True)
def scan_rows(
    data: Bytes,
    offsets: Longs,
    table: unicode_data.UnicodeTable,
    text: Bytes,
    signs: Bytes,
    starts: Hashes,
    stops: Hashes,
    words: npt.NDArray[np.int32],
    texts: Hashes,
    ngrams: Hashes,
    ends: Longs,
) -> None:
    """Fill words, texts, ngrams and ends (see `altalign.filters.words.Scan`) for the n rows between the offsets.

    `offsets` are int64[n + 1]; text, signs, starts and stops are scratch memory that `altalign.filters.words` reserves
    for the longest block.
    """
    rows, blocks, entries = offsets.size - 1, address_of(table.blocks), address_of(table.entries)
    data_at, text_at, signs_at, ngrams_at = address_of(data), address_of(text), address_of(signs), address_of(ngrams)
    starts_at, stops_at = address_of(starts), address_of(stops)
    where = np.empty((BLOCK_ROWS, 4), np.int64)  # of each row: text from, text to, whether written anew, words to
    first, made = 0, 0
    while first < rows:
        base, last = offsets[first], first + 1
        while last < rows and last - first < BLOCK_ROWS and offsets[last + 1] - base <= BLOCK_BYTES:
            last += 1
        size = offsets[last] - base
        _fold_ascii(data[base : base + size], text, signs)
        split = (size + bits.PADDING) & ~63  # where the rows that are written anew begin
        fill(signs_at + size, split - size, GAP_BIT)
        for row in range(first, last + 1):
            signs[offsets[row] - base] |= BREAK_BIT
        to = split
        for row in range(first, last):
            start, stop = offsets[row] - base, offsets[row + 1] - base
            text_from, text_to, words_to, is_anew = start, stop, stop, 0
            if not _look_closer(text_at, signs_at, start, stop, blocks, entries):
                fill(signs_at + start, stop - start, GAP_BIT)
                text_from, is_anew = to, 1
                text_to, words_to = _write_anew(
                    data_at, base + start, base + stop, text_at, signs_at, to, blocks, entries
                )
                signs[words_to] = GAP_BIT
                to = words_to + 1
            place = row - first
            where[place, 0], where[place, 1], where[place, 2], where[place, 3] = text_from, text_to, is_anew, words_to
        end = (to + bits.PADDING) & ~63
        fill(signs_at + to, end - to, GAP_BIT)
        _find_words(signs_at, end, starts_at, stops_at)
        here, anew = 0, 0
        while starts[anew] < split:
            anew += 1
        for row in range(first, last):
            place = row - first
            begin, stop, is_anew, words_end = where[place, 0], where[place, 1], where[place, 2], where[place, 3]
            before, k = made, anew if is_anew else here
            made, k = _hash_words(text_at, signs_at, starts_at, stops_at, k, words_end, ngrams_at, made)
            here, anew = here if is_anew else k, k if is_anew else anew
            words[row] = (made - before + 1) >> 1
            texts[row] = hash_text(text_at, begin, stop - begin)
            ends[row] = made
        first = last
