"""One caption in plain Python: cleaned, folded, its words and their hashes. Kernels do the same with columns.

product.md, section 3, defines a word of the folded caption.
"""

import re
from functools import cache
from itertools import pairwise

import numpy as np
import unicodedata2

from altalign.filters import unicode_data
from altalign.filters.unicode_data import CONNECTOR, CONTROL, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE

LAST_WHITE_SPACE = 0x3000  # no control comes after it either
APOSTROPHES = "'’"
UINT64 = (1 << 64) - 1

# Stafford's variant 13 of the MurmurHash3 finaliser
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# primes with about half of their bits set
STEP_1, STEP_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
BIGRAM = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


def clean(text: str) -> str:
    """The caption as it is stored, as `captions.clean` makes it of a column."""
    if text.isprintable() and "  " not in text:  # no controls, and no white space but the space
        return unicodedata2.normalize("NFC", text).strip(" ")
    controls, white_space = _patterns()
    return white_space.sub(" ", unicodedata2.normalize("NFC", controls.sub("", text))).strip(" ")


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # Patterns of runs of controls that are not white space, and of runs of white space, in the frozen Unicode version.
    entries = {chr(point): unicode_data.entry(chr(point)) for point in range(LAST_WHITE_SPACE + 1)}
    white_space = re.escape("".join(c for c in entries if entries[c] & unicode_data.WHITE_SPACE))
    controls = re.escape("".join(c for c in entries if entries[c] & (CONTROL | unicode_data.WHITE_SPACE) == CONTROL))
    return re.compile(f"[{controls}]+"), re.compile(f"[{white_space}]+")


def folded(caption: str) -> str:
    """The caption with each code point's simple lower-case mapping (UnicodeData field 13); not normalised again."""
    return caption.translate(unicode_data.lower_case())


def words_of(caption: str) -> list[str]:
    """Folded words of a caption, without format characters and with every apostrophe written as '."""
    entries = ((character, unicode_data.entry(character)) for character in folded(caption))
    visible = [(character, entry) for character, entry in entries if not entry & FORMAT]
    words: list[str] = []
    word, state = "", 0  # state: class of the word's last character; SINGLE in a script without spaces
    for i, (character, entry) in enumerate([*visible, ("", 0)]):
        following = visible[i + 1][1] if i + 1 < len(visible) else 0
        joins = state & (LETTER | MARK) and following & LETTER and not (state | following) & SINGLE
        if character and character in APOSTROPHES and joins:
            word, state = word + "'", CONNECTOR
        elif state & SINGLE and entry & (MARK | MODIFIER_LETTER):
            word += character
        elif entry & (LETTER | MARK | NUMBER | CONNECTOR) and not entry & SINGLE and not state & SINGLE:
            word, state = word + character, entry
        else:
            words.append(word)
            is_word = entry & (LETTER | MARK | NUMBER | CONNECTOR)
            word, state = (character, entry) if is_word else ("", 0)
    return [word for word in words if any(unicode_data.entry(character) & (LETTER | NUMBER) for character in word)]


def ngrams_of(caption: str) -> list[str]:
    """Unigrams and bigrams ("first second") of a caption, in the order of `Scan.ngrams`."""
    words = words_of(caption)
    bigrams = [f"{first} {second}" for first, second in pairwise(words)]
    return [ngram for pair in zip(words, ["", *bigrams], strict=True) for ngram in pair if ngram] if words else []


def ngram_hashes(caption: str) -> list[int]:
    """Hashes of `ngrams_of(caption)`."""
    return [hash_of_bigram(*ngram.split(" ")) if " " in ngram else hash_of_word(ngram) for ngram in ngrams_of(caption)]


def hash_of_word(word: str) -> int:
    """64-bit hash of a folded word; any two words of up to 8 bytes differ."""
    h = 0
    for block in _blocks(word.encode()):
        h = _mix(h ^ block)
    return h


def hash_of_bigram(first: str, second: str) -> int:
    """64-bit hash of two neighbouring folded words; their order counts."""
    return _mix(hash_of_word(first) * int(BIGRAM) & UINT64 ^ hash_of_word(second))


def hash_of_text(caption: str) -> int:
    """Hash of a caption after folding, as in `Scan.texts`."""
    text = folded(caption).encode()
    lanes = [int(STEP_1), int(STEP_2)]
    for i, block in enumerate(_blocks(text.ljust(len(text) // 16 * 16 + 16, b"\0"))):
        lane = lanes[i % 2] + block * int(STEP_2) & UINT64
        lanes[i % 2] = (lane << 31 | lane >> 33) * int(STEP_1) & UINT64
    return _mix(_mix(lanes[0] + len(text) & UINT64) ^ lanes[1])


def _blocks(text: bytes) -> list[int]:
    return [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]


def _mix(h: int) -> int:
    h = (h ^ h >> 30) * int(MIX_1) & UINT64
    h = (h ^ h >> 27) * int(MIX_2) & UINT64
    return h ^ h >> 31
