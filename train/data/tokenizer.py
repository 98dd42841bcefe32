"""WordPiece of the captions (section 5), trained on them or taken from a file.

The same captions give the same bytes.

The trainer of `tokenizers` numbers continuing letters ("##a") in the order of a hash table that is seeded anew in each
process, and breaks ties between merges by these numbers. So the alphabet is counted and numbered here first, and given
to the trainer; what it then does is a function of counts alone.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.train.settings import TokenizerSettings

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CONTINUES = "##"
_FREQUENCY_AT_LEAST = 2  # of a letter and of a merge, as in BERT's own trainers: what is there once helps nobody
# letters at most: a tenth of the vocabulary, or 1,000 where a quarter of it is as many
_LETTERS_SHARE, _LETTERS_AT_LEAST = 10, 1000
_CODE_POINTS = 0x110000


class CaptionTokenizer:
    """Captions to numbers of word pieces. Of several processes: it travels as the JSON that it is stored as."""

    def __init__(self, text: str, *, tokens_at_most: int):
        self.text, self.tokens_at_most = text, tokens_at_most
        self._whole, self._tokenizer = Tokenizer.from_str(text), Tokenizer.from_str(text)
        for each in (self._whole, self._tokenizer):
            each.no_padding()
            each.encode_special_tokens = True  # as text: a caption may say "[PAD]"
        self._whole.no_truncation()
        self._tokenizer.enable_truncation(tokens_at_most)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.text, self.tokens_at_most)

    @property
    def vocabulary(self) -> int:
        """Word pieces, special tokens among them: the largest number is one less."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON."""
        return sha256(self.text.encode()).hexdigest()

    def encode(self, captions: Sequence[str]) -> list[list[int]]:
        """The word pieces of each caption, [CLS] first and [SEP] last, no more than `tokens_at_most`."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(captions))]

    def encode_words(self, captions: Sequence[str]) -> list[list[list[int]]]:
        """The word pieces of each word of each caption: without [CLS] and [SEP], and not cut."""
        found: list[list[list[int]]] = []
        for encoding in self._whole.encode_batch(list(captions), add_special_tokens=False):
            words: dict[int | None, list[int]] = {}
            for piece, word in zip(encoding.ids, encoding.word_ids, strict=True):
                words.setdefault(word, []).append(piece)
            found.append(list(words.values()))
        return found

    def framed(self, pieces: Sequence[int]) -> list[int]:
        """Pieces as the text tower takes them: [CLS] first and [SEP] last, no more than `tokens_at_most`."""
        return [self.number("[CLS]"), *pieces[: self.tokens_at_most - 2], self.number("[SEP]")]

    def number(self, piece: str) -> int:
        """The number of a piece.

        Raises:
            UsageError: the vocabulary does not have it.
        """
        found = self._tokenizer.token_to_id(piece)
        if found is None:
            raise UsageError(f"[tokenizer] the vocabulary has no {piece}; give another file, or train one")
        return found

    @cached_property
    def whole_words(self) -> npt.NDArray[np.int64]:
        """The pieces that are words of two letters or more: int64[n]."""
        words = [word for word in self.words() if len(word) > 1 and word.isalpha()]
        return np.array([self.number(word) for word in words], np.int64)

    def words(self) -> list[str]:
        """The pieces of the vocabulary that are whole words, in the order of their numbers."""
        pieces = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        return [piece for piece, _ in pieces if not piece.startswith(_CONTINUES) and piece not in SPECIAL]

    def pieces(self, caption: str) -> list[str]:
        """The same as text, for people."""
        return self._tokenizer.encode(caption).tokens

    def write(self, path: str) -> None:
        """Write the JSON, which `transformers` and `tokenizers` read."""
        storage.write_bytes(path, self.text.encode())


def _unpickled(text: str, tokens_at_most: int) -> CaptionTokenizer:
    return CaptionTokenizer(text, tokens_at_most=tokens_at_most)


def read(path: str, *, tokens_at_most: int) -> CaptionTokenizer:
    """A `tokenizer.json`, of an earlier run or of others.

    Raises:
        UsageError: it is not there, or its numbers are not what the towers rely on: [PAD] = 0, [CLS] first, [SEP] last.
        UnreadableError: it is no tokenizer.
    """
    try:
        text = storage.read_bytes(path).decode()
        tokenizer = CaptionTokenizer(text, tokens_at_most=tokens_at_most)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such tokenizer; give a tokenizer.json in [tokenizer] file, or none to train one"
        ) from None
    except Exception as error:  # `tokenizers` raises nothing more precise
        if isinstance(error, (MemoryError, UsageError)):
            raise
        raise UnreadableError(
            f"{path}: no tokenizer.json ({' '.join(str(error).split()):.120}); give another in [tokenizer] file"
        ) from None
    _check(tokenizer, path)
    return tokenizer


def train(captions: Callable[[], Iterable[Sequence[str]]], settings: TokenizerSettings) -> CaptionTokenizer:
    """Train on captions, which are gone through twice: `captions()` gives them anew, in parts.

    The vocabulary is: special tokens; letters; continuing letters; and merges, the most frequent first. Letters are the
    most frequent of those that are there twice, a tenth of the vocabulary at most; captions with others have [UNK] for
    those words.

    Raises:
        UsageError: no caption has a letter.
    """
    normalizer = _normalizer(settings)
    letters, continuing = _alphabet(captions(), normalizer, _letters_at_most(settings.vocabulary_size))
    if not letters:
        raise UsageError("[tokenizer] no caption to train on has a letter twice; give other [data] runs, or a file")
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(settings.vocabulary_size, len(SPECIAL) + len(letters) + len(continuing)),
        min_frequency=_FREQUENCY_AT_LEAST,
        special_tokens=[*SPECIAL, *continuing],  # so that they have numbers before the trainer meets them
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trained.train_from_iterator((caption for part in captions() for caption in part), trainer)
    known = {*SPECIAL, *letters, *continuing}
    merges = [piece for piece, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1]) if piece not in known]
    pieces = [*SPECIAL, *letters, *continuing, *merges]
    return CaptionTokenizer(_json(pieces, normalizer), tokens_at_most=settings.tokens_at_most)


def _json(pieces: list[str], normalizer: normalizers.Normalizer) -> str:
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    value = json.loads(tokenizer.to_str())
    value["model"]["vocab"] = numbers  # in their order
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _normalizer(settings: TokenizerSettings) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=settings.strip_accents, lowercase=settings.lower_case
    )


def _letters_at_most(vocabulary_size: int) -> int:
    return max(1, vocabulary_size // _LETTERS_SHARE, min(_LETTERS_AT_LEAST, (vocabulary_size - len(SPECIAL)) // 4))


def _alphabet(
    captions: Iterable[Sequence[str]], normalizer: normalizers.Normalizer, at_most: int
) -> tuple[list[str], list[str]]:
    """Letters, and with ## before them those that can stand within a word, both in the order of code points.

    Normalising is letter by letter, so that the letters of captions are counted first and normalised then.
    """
    counts = np.zeros(_CODE_POINTS, np.int64)
    for part in captions:
        counts += _code_points(part)
    normalised = np.zeros(_CODE_POINTS, np.int64)
    for point in np.flatnonzero(counts):
        for letter in normalizer.normalize_str(chr(point)):
            if not letter.isspace():
                normalised[ord(letter)] += counts[point]
    points = np.flatnonzero(normalised >= _FREQUENCY_AT_LEAST)
    kept = sorted(points[np.argsort(-normalised[points], kind="stable")][:at_most].tolist())
    letters = [chr(point) for point in kept]
    return letters, [_CONTINUES + letter for letter in letters if _is_one_word(f"a{letter}", normalizer)]


def _is_one_word(text: str, normalizer: normalizers.Normalizer) -> bool:
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))) == 1


def _code_points(captions: Sequence[str]) -> npt.NDArray[np.int64]:
    points = np.frombuffer("".join(captions).encode("utf-32-le"), np.uint32)
    return np.bincount(points, minlength=_CODE_POINTS)


def _check(tokenizer: CaptionTokenizer, path: str) -> None:
    pieces, (ids,) = tokenizer.pieces("a b"), tokenizer.encode(["a b"])
    if len(pieces) < 3 or (pieces[0], pieces[-1]) != ("[CLS]", "[SEP]"):
        raise UsageError(
            f"{path}: it makes {' '.join(pieces)!r} of 'a b', without [CLS] first or [SEP] last: the text tower reads "
            "[CLS]; add a post-processor"
        )
    padding = json.loads(tokenizer.text)["model"].get("vocab", {}).get("[PAD]")
    if padding != 0 or 0 in ids:
        raise UsageError(
            f"{path}: [PAD] is {'not there' if padding is None else padding}, and captions are padded with 0; number "
            "it 0"
        )
