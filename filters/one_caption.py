"""One caption in plain Python: cleaned, folded, and its words. Kernels do the same with columns.

product.md, section 3, defines a word of the folded caption.
"""

import re
from itertools import pairwise

import numpy as np
import unicodedata2

from altalign.filters import unicode_data
from altalign.filters.unicode_data import CONNECTOR, FORMAT, LETTER, MARK, MODIFIER_LETTER, NUMBER, SINGLE

_CONTROLS = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]+")  # those that are no white space, which `split` finds
APOSTROPHES = "'’"
# of hashes of words: Stafford's variant 13 of the MurmurHash3 finaliser
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BIGRAM = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


def clean(text: str) -> str:
    """The caption as it is stored, as `captions.clean` makes it of a column."""
    if text.isprintable() and "  " not in text:  # the usual case, in less time
        return unicodedata2.normalize("NFC", text).strip(" ")
    return " ".join(unicodedata2.normalize("NFC", _CONTROLS.sub("", text)).split())


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

    def hash_of(word: str) -> int:
        data, h = word.encode(), 0
        for at in range(0, len(data), 8):
            h = _mix(h ^ int.from_bytes(data[at : at + 8], "little"))
        return h

    hashes = list[int]()
    for ngram in ngrams_of(caption):
        first, space, second = ngram.partition(" ")
        of_pair = hash_of(first) * int(BIGRAM) % (1 << 64) ^ hash_of(second)
        hashes.append(_mix(of_pair) if space else hash_of(first))
    return hashes


def _mix(h: int) -> int:
    h = (h ^ h >> 30) * int(MIX_1) % (1 << 64)
    h = (h ^ h >> 27) * int(MIX_2) % (1 << 64)
    return h ^ h >> 31
