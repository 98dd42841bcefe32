"""WordPiece of the captions (section 5), trained on them or taken from a file; or what BART, CLIP and SigLIP have.

The same captions give the same bytes. The trainer of `tokenizers` numbers continuing letters ("##a") in the order of a
hash table that is seeded anew in each process, and breaks ties between merges by these numbers. So the alphabet is
counted and numbered here first, and given to the trainer; what it then does is a function of counts alone.
"""

import json
import string
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from altalign import storage
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.train.settings.training import OF_RUN, TokenizerSettings


class Special(NamedTuple):
    """The pieces of a vocabulary that are no text, by what they are for."""

    padding: str
    unknown: str
    first: str
    last: str
    mask: str


SPECIAL = Special("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # BERT's, and ours
OF_BART = Special("<pad>", "<unk>", "<s>", "</s>", "<mask>")
OF_CLIP = Special("<|endoftext|>", "<|endoftext|>", "<|startoftext|>", "<|endoftext|>", "")
OF_SIGLIP = Special("</s>", "<unk>", "", "</s>", "")
OWNERS = {OF_BART: "BART", OF_CLIP: "CLIP", OF_SIGLIP: "SigLIP"}
_FILE = "tokenizer.json"
# what stands before and after a word, by the pieces that are no text: for a space, or the word's end
_ENDS = {SPECIAL: ("", ""), OF_BART: ("\u0120", ""), OF_CLIP: ("", "</w>"), OF_SIGLIP: ("\u2581", "")}
_CONTINUES = "##"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FREQUENCY_AT_LEAST = 2  # of a letter and of a merge, as in BERT's own trainers: what is there once helps nobody
# letters at most: a tenth of the vocabulary, or 1,000 where a quarter of it is as many
_LETTERS_SHARE, _LETTERS_AT_LEAST = 10, 1000
_CODE_POINTS = 0x110000
CAPTIONS_AT_MOST = 20_000_000  # that a vocabulary is trained on: those of the smallest keys, which are hashes


class CaptionTokenizer:
    """Captions to numbers of word pieces. Of several processes: it travels as the JSON that it is stored as."""

    WHAT = "word pieces"

    def __init__(self, text: str, *, tokens_at_most: int):
        self.text, self.tokens_at_most = text, tokens_at_most
        self._whole, self._tokenizer = Tokenizer.from_str(text), Tokenizer.from_str(text)
        for each in (self._whole, self._tokenizer):
            each.no_padding()
            each.encode_special_tokens = True  # as text: a caption may say "[PAD]"
        self._whole.no_truncation()
        self._tokenizer.enable_truncation(tokens_at_most)
        kind = self._tokenizer.model
        of_bytes = OF_CLIP if self._tokenizer.token_to_id(OF_CLIP.last) is not None else OF_BART
        of_others = OF_SIGLIP if isinstance(kind, models.Unigram) else SPECIAL
        self.is_of_bytes = isinstance(kind, models.BPE)
        self.special = of_bytes if self.is_of_bytes else of_others
        self._begins, self._ends = _ENDS[self.special]
        if self.special is SPECIAL:
            self._tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUES, cleanup=False)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(CaptionTokenizer, tokens_at_most=self.tokens_at_most), (self.text,)

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
        return [encoding.ids for encoding in self._tokenizer.encode_batch(self._cleaned(captions))]

    def encode_words(self, captions: Sequence[str]) -> list[list[list[int]]]:
        """The word pieces of each word of each caption: without [CLS] and [SEP], and not cut."""
        encoded: list[list[list[int]]] = []
        for encoding in self._whole.encode_batch(self._cleaned(captions), add_special_tokens=False):
            words: dict[int | None, list[int]] = {}
            for piece, word in zip(encoding.ids, encoding.word_ids, strict=True):
                words.setdefault(word, []).append(piece)
            encoded.append(list(words.values()))
        return encoded

    def framed(self, pieces: Sequence[int], *, tokens_at_most: int = 0) -> list[int]:
        """Pieces with [CLS] first and [SEP] last, no more than `tokens_at_most` (0: as captions)."""
        before = [self.number(self.special.first)] if self.special.first else []
        most = (tokens_at_most or self.tokens_at_most) - len(before) - 1
        return [*before, *pieces[:most], self.number(self.special.last)]

    def _cleaned(self, captions: Sequence[str]) -> list[str]:
        """SigLIP's without punctuation, in small letters (big_vision's `canonicalize_text`); others as they are."""
        if self.special is not OF_SIGLIP:
            return list(captions)
        return [" ".join(text.replace("_", " ").translate(_PUNCTUATION).lower().split()) for text in captions]

    def number(self, piece: str) -> int:
        """The number of a piece. Raises UsageError where the vocabulary does not have it."""
        number = self._tokenizer.token_to_id(piece)
        if number is None:
            raise UsageError(f"[tokenizer] the vocabulary has no {piece or '[MASK]'}; give another file, or train one")
        return number

    @cached_property
    def whole_words(self) -> npt.NDArray[np.int64]:
        """The pieces that are words of two letters or more: int64[n]."""
        words = [word for word in self.words() if len(word) > 1 and word.isalpha()]
        return np.array([self.number(self._begins + word + self._ends) for word in words], np.int64)

    def words(self) -> list[str]:
        """The pieces of the vocabulary that are whole words, in the order of their numbers; but BERT's, of ASCII."""
        whole = [piece for piece in _pieces(self._tokenizer) if not piece.startswith(_CONTINUES)]
        pieces = [piece for piece in whole if piece not in self.special]
        begun = [piece for piece in pieces if piece.startswith(self._begins) and piece.endswith(self._ends)]
        words = [piece.removeprefix(self._begins).removesuffix(self._ends) for piece in begun]
        return words if self.special is SPECIAL else [word for word in words if word.isascii()]

    def pieces(self, caption: str) -> list[str]:
        """The word pieces of a caption as text, for people."""
        return self._tokenizer.encode(self._cleaned([caption])[0]).tokens

    def shown(self, numbers: Sequence[int]) -> str:
        """Pieces by their numbers as text, for people: joined to words, without [CLS] and [SEP]."""
        ends = self.framed([])
        return self._tokenizer.decode([one for one in numbers if one not in ends], skip_special_tokens=False).strip()

    def write(self, path: str) -> None:
        """Write the JSON, which `transformers` and `tokenizers` read."""
        storage.write_bytes(path, self.text.encode())


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary in the order of its numbers."""
    return [piece for piece, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


def given(settings: TokenizerSettings, weights: str = "") -> CaptionTokenizer | None:
    """The tokenizer of the settings, or that in a folder of the text tower's `weights`; None: one is to be trained."""
    path = (settings.file or weights).removeprefix(OF_RUN)
    if path and storage.kind(path) == "folder":
        path = storage.join(path, _FILE)
    elif not settings.file:
        return None
    return read(path, tokens_at_most=settings.tokens_at_most)


def read(path: str, *, tokens_at_most: int) -> CaptionTokenizer:
    """A `tokenizer.json`, of an earlier run or of others.

    Raises UsageError where it is missing, or its numbers are not what the towers rely on ([PAD] = 0, [CLS] first, [SEP]
    last), UnreadableError where it is no tokenizer.
    """
    try:
        tokenizer = CaptionTokenizer(storage.read_bytes(path).decode(), tokens_at_most=tokens_at_most)
    except FileNotFoundError:
        advice = "put a tokenizer.json there, or give one in [tokenizer] file"
        raise UsageError(f"{path}: no such tokenizer; {advice}") from None
    except (MemoryError, AltalignError):
        raise
    except Exception as error:  # what `tokenizers` raises is no more precise
        why = " ".join(str(error).split())
        raise UnreadableError(f"{path}: no tokenizer.json ({why:.120}); give another in [tokenizer] file") from None
    pieces, (ids,), special = tokenizer.pieces("a b"), tokenizer.encode(["a b"]), tokenizer.special
    if len(pieces) < 3 or (pieces[0] if special.first else "", pieces[-1]) != (special.first, special.last):
        raise UsageError(
            f"{path}: it makes {' '.join(pieces)!r} of 'a b', without {special.first} first or {special.last} last: "
            f"the text tower reads {special.first or special.last}; add a post-processor"
        )
    vocabulary = json.loads(tokenizer.text)["model"].get("vocab", {})
    padding = vocabulary.get(special.padding) if special is SPECIAL else None  # of Unigram it is a list
    # BART's tower never looks at padding, whatever its number, nor do those of CLIP and SigLIP at ours
    if special is SPECIAL and (padding != 0 or 0 in ids):
        what = f"[PAD] is {'not there' if padding is None else padding}"
        raise UsageError(f"{path}: {what}, and captions are padded with 0; number it 0")
    return tokenizer


def train(captions: Callable[[], Iterable[Sequence[str]]], settings: TokenizerSettings) -> CaptionTokenizer:
    """Train on captions, which are gone through twice: `captions()` gives them anew, in parts.

    The vocabulary is: special tokens; letters; continuing letters; and merges, the most frequent first. Letters are the
    most frequent of those that occur twice, a tenth of the vocabulary at most; words with others are [UNK].

    Raises UsageError: no caption has a letter.
    """
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=settings.lower_case
    )
    size = settings.vocabulary_size
    at_most = max(1, size // _LETTERS_SHARE, min(_LETTERS_AT_LEAST, (size - len(SPECIAL)) // 4))
    letters, continuing = _alphabet(captions(), normalizer, at_most)
    if not letters:
        raise UsageError("[tokenizer] no caption to train on has a letter twice; give other [data] runs, or a file")
    known = [*SPECIAL, *letters, *continuing]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(size, len(known)),
        min_frequency=_FREQUENCY_AT_LEAST,
        special_tokens=[*SPECIAL, *continuing],  # so that they have numbers before the trainer meets them
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trained.train_from_iterator((caption for part in captions() for caption in part), trainer)
    others = set(trained.get_vocab()) - set(known)
    merges = [piece for piece in _pieces(trained) if piece in others]
    return CaptionTokenizer(_json([*known, *merges], normalizer), tokens_at_most=settings.tokens_at_most)


def _alphabet(
    captions: Iterable[Sequence[str]], normalizer: normalizers.Normalizer, at_most: int
) -> tuple[list[str], list[str]]:
    """Letters, and with ## before them those that can stand within a word, both in the order of code points."""
    counts, normalised = np.zeros(_CODE_POINTS, np.int64), np.zeros(_CODE_POINTS, np.int64)
    for part in captions:
        points = np.frombuffer("".join(part).encode("utf-32-le"), np.uint32)
        counts += np.bincount(points, minlength=_CODE_POINTS)
    for point in np.flatnonzero(counts):
        for letter in normalizer.normalize_str(chr(point)):
            if not letter.isspace():
                normalised[ord(letter)] += counts[point]
    frequent = np.flatnonzero(normalised >= _FREQUENCY_AT_LEAST)
    kept = sorted(frequent[np.argsort(-normalised[frequent], kind="stable")][:at_most].tolist())
    letters, splitter = [chr(point) for point in kept], pre_tokenizers.BertPreTokenizer()
    words_of = {c: splitter.pre_tokenize_str(normalizer.normalize_str(f"a{c}")) for c in letters}
    return letters, [_CONTINUES + letter for letter in letters if len(words_of[letter]) == 1]


def _json(pieces: list[str], normalizer: normalizers.Normalizer) -> str:
    """A tokenizer of WordPiece, as its file."""
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    value = json.loads(tokenizer.to_str())
    value["model"]["vocab"] = numbers  # in their order
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
