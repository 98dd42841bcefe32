"""The vocabulary of nouns: those of word lists, or those that a tagger finds, that texts have often enough. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec

WORDS_AT_MOST = 3  # of a noun of a list: "hot air balloon"
TAGGER = "en_core_web_sm"  # spaCy's small English model, where it is installed
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

Tagger = Callable[[Iterable[str]], Iterable[list[str]]]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case: letters, with hyphens and apostrophes within."""
    return [word.lower() for word in _WORD.findall(text)]


def phrases_of(text: str) -> set[str]:
    """All runs of one to three words of a text."""
    words = words_of(text)
    return {
        " ".join(words[first : first + count])
        for count in range(1, WORDS_AT_MOST + 1)
        for first in range(len(words) - count + 1)
    }


def of_lists(lists: Iterable[str], texts: Iterable[str], *, texts_at_least: int) -> list[str]:
    """The nouns of word lists that stand in so many texts, sorted; of `texts_at_least` = 0 all of them."""
    known = {" ".join(words_of(line)) for line in lists} - {""}
    counts = Counter(phrase for text in texts for phrase in phrases_of(text) & known)
    return sorted(noun for noun in known if counts[noun] >= texts_at_least)


def of_tagger(tagged: Tagger, texts: Iterable[str], *, texts_at_least: int) -> list[str]:
    """The nouns that a tagger finds in so many texts, sorted."""
    counts = Counter(noun for nouns in tagged(texts) for noun in set(nouns))
    return sorted(noun for noun, count in counts.items() if count >= texts_at_least)


def tagger() -> Tagger | None:
    """SpaCy's, where it and its model are installed."""
    if not (find_spec("spacy") and find_spec(TAGGER)):
        return None
    import spacy  # pyright: ignore[reportMissingImports]  # no dependency of ours

    of_spacy = spacy.load(TAGGER, disable=["parser", "ner"])

    def tagged(texts: Iterable[str]) -> Iterable[list[str]]:
        for found in of_spacy.pipe(texts, batch_size=256):
            yield [token.lemma_.lower() for token in found if token.pos_ == "NOUN" and token.is_alpha]

    return tagged
