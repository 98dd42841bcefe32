"""One caption in plain Python: cleaned, folded, and its words. Kernels do the same with columns.

product.md, section 3, defines a word of the folded caption.
"""

import re
from itertools import pairwise

import numpy as np

from altalign.filters import unicode_data
from altalign.filters.unicode_16 import unicodedata
from altalign.filters.unicode_data import CONNECTOR, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE

_CONTROLS = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]+")  # those that are no white space, which `split` finds
APOSTROPHES = "'’"
# of hashes of words: Stafford's variant 13 of the MurmurHash3 finaliser
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BIGRAM = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


def clean(text: str) -> str:
    """The caption as it is stored, as `captions.clean` makes it of a column."""
    if text.isprintable() and "  " not in text:  # the usual case, in less time
        return unicodedata.normalize("NFC", text).strip(" ")
    return " ".join(unicodedata.normalize("NFC", _CONTROLS.sub("", text)).split())


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
    pairs = ([second, f"{first} {second}"] for first, second in pairwise(words))
    return [*words[:1], *(ngram for pair in pairs for ngram in pair)]


def ngram_hashes(caption: str) -> list[int]:
    """Hashes of `ngrams_of(caption)`, as the kernels of `words` make them: `explain` need not wait for these."""
    return [hash_of_bigram(*ngram.split(" ")) if " " in ngram else hash_of_word(ngram) for ngram in ngrams_of(caption)]


def hash_of_word(word: str) -> int:
    """64-bit hash of a folded word; any two words of up to 8 bytes differ."""
    h = 0
    for block in blocks(word.encode()):
        h = mix(h ^ block)
    return h


def hash_of_bigram(first: str, second: str) -> int:
    """64-bit hash of two neighbouring folded words; their order counts."""
    return mix(hash_of_word(first) * int(BIGRAM) % (1 << 64) ^ hash_of_word(second))


def blocks(text: bytes) -> list[int]:
    """Numbers of 8 bytes each, the first byte in the low bits; the last of fewer."""
    return [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]


def mix(h: int) -> int:
    """64 bits, each of which depends on all of `h`."""
    h = (h ^ h >> 30) * int(MIX_1) % (1 << 64)
    h = (h ^ h >> 27) * int(MIX_2) % (1 << 64)
    return h ^ h >> 31
