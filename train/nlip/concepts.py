"""`altalign nlip concepts RUN …`: the nouns that a frozen model finds nearest to each image of curated runs.

OUT/concepts.parquet   key, concepts, similarity
OUT/nouns.txt          the vocabulary, a noun a line
OUT/concepts.json      runs, model, prompt, and what the vocabulary is of

A command that was stopped goes on where it was.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval.encoded import Encoder
from altalign.models import torch_models
from altalign.train.data import by_key
from altalign.train.data.samples import Samples
from altalign.train.run.ranks import Ranks

SCHEMA = pa.schema(
    [
        ("key", pa.string()),  # of the pair
        ("concepts", pa.list_(pa.string())),  # nouns, the nearest first; none where the image cannot be decoded
        ("similarity", pa.list_(pa.float32())),  # of each, the cosine
    ]
)
WORDS_AT_MOST = 3  # of a noun of a list: "hot air balloon"
TAGGER = "en_core_web_sm"  # spaCy's small English model, where it is installed
_OURS = {"concepts.parquet", "concepts.json", "nouns.txt", "index", by_key.PARTS}
_BATCH = 256  # images, or prompts, that are encoded at a time
_PART = 16 * _BATCH  # pairs that are done before a file is written: what a stop costs
_THREADS = 2  # that decode
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

Tagger = Callable[[Iterable[str]], Iterable[list[str]]]


def retrieve(
    runs: Sequence[str],
    out: str,
    *,
    model: str,
    texts: Sequence[str],
    lists: Sequence[str],
    tags: bool = False,
    texts_at_least: int,
    prompt: str,
    top: int,
) -> int:
    """Build the vocabulary, and write the concepts of every pair of finished runs; gives the exit code.

    The vocabulary is of nouns in lists, or of those that a tagger finds where there is no list, or of both with `tags`.

    Raises UsageError: `out` is something else, or of other settings; no noun is left, or a run or the model cannot be
    opened.
    """
    if storage.kind(out) == "file" or {name for name in storage.entries(out) if not storage.is_partial(name)} - _OURS:
        raise UsageError(f"{out}: it is there already, and no folder of concepts; give a new one")
    tagged = tagger() if tags or not lists else None
    if tags and tagged is None:
        raise UsageError(f"--tagger: spaCy with {TAGGER} is not installed; install both, or leave it out")
    if not lists and tagged is None:
        raise UsageError(f"no --words, and no tagger is installed (spaCy with {TAGGER}): give files of nouns")
    known = of_lists(chain.from_iterable(map(_lines, lists)), [], texts_at_least=0)
    if lists and not known:
        raise UsageError(f"{', '.join(lists)}: no noun in it; give files with a noun a line")
    storage.sweep(out)
    encoder = torch_models.opened(model)
    index = storage.join(storage.local_folder(out), "index")
    samples = Samples.open(index, runs)
    nouns = vocabulary(
        known,
        tagged,
        lambda: chain.from_iterable(map(_lines, texts) if texts else samples.captions()),
        texts_at_least=texts_at_least,
    )
    if not nouns:
        raise UsageError(
            f"no noun is in {texts_at_least} texts: no concept could be found; give other --words or --texts, or a "
            "lower --at-least"
        )
    keys, numbers = by_key.in_order(samples)
    place = storage.join(out, "concepts.parquet")
    basis = {
        "runs": dict(samples.runs.manifests),
        "model": model,
        "model_sha256": encoder.digest,
        "prompt": prompt,
        "top": top,
        "texts": list(texts),
        "words": list(lists),
        "texts_at_least": texts_at_least,
        "nouns": len(nouns),
        "nouns_sha256": sha256("\n".join(nouns).encode()).hexdigest(),
        "pairs": len(keys),
    }
    if (before := by_key.known(place)) and before != basis:
        changed = ", ".join(name for name in basis if before.get(name) != basis[name])
        raise UsageError(f"{out}: its concepts are of other {changed}; give a new folder")
    terminal.stderr().print(f"{len(nouns):,} nouns, {len(samples):,} pairs", soft_wrap=True)
    storage.write_bytes(storage.join(out, "nouns.txt"), "".join(f"{noun}\n" for noun in nouns).encode())
    concepts, alone = Concepts(encoder, samples, nouns, prompt, top), Ranks(0, 1, torch.device("cpu"))
    making = by_key.Making(place, basis, alone, "naming concepts")

    def of_pairs(first: int, after: int, advance: Callable[[int], None]) -> pa.Table:
        return concepts.table(numbers[first:after], advance)

    making.write(SCHEMA, of_pairs, len(numbers), size=_PART)
    storage.delete(index)
    terminal.stdout().print(f"concepts: {terminal.shown(place)}", soft_wrap=True)
    return 0


class Concepts:
    """The nouns of images."""

    @torch.no_grad()
    def __init__(self, encoder: Encoder, samples: Samples, nouns: Sequence[str], prompt: str, top: int) -> None:
        self._encoder, self._samples, self._nouns = encoder, samples, nouns
        prompts, self._top = [f"{prompt} {noun}".strip() for noun in nouns], min(top, len(nouns))
        batches = [prompts[first : first + _BATCH] for first in range(0, len(prompts), _BATCH)]
        with terminal.progress_bar("encoding", len(prompts), "nouns") as advance:
            encoded = list[torch.Tensor]()
            for batch in batches:
                encoded.append(encoder.encode_text(batch).float().cpu())
                advance(len(batch))
        self._vectors = torch.cat(encoded)

    @torch.no_grad()
    def table(self, numbers: npt.NDArray[np.int64], advance: Callable[[int], None]) -> pa.Table:
        """Rows of the table for some pairs; `advance` is called with how many have one since."""
        tables = []
        for some in self._samples.decoded(self._encoder.decode, numbers, size=_BATCH, threads=_THREADS):
            nearest = iter(())
            if any(some.is_whole):
                images = self._encoder.encode_image(some.pixels).float().cpu()
                best = (images @ self._vectors.T).topk(self._top, dim=1)
                nearest = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            rows = [next(nearest) if is_whole else ([], []) for is_whole in some.is_whole]
            words = [[self._nouns[place] for place in places] for _, places in rows]
            tables.append(pa.table([some.keys, words, [list(cosines) for cosines, _ in rows]], schema=SCHEMA))
            advance(len(some.keys))
        return pa.concat_tables(tables)


# The vocabulary: nouns of word lists, or those that a tagger finds, that texts have often enough ----------------------


def _lines(path: str) -> Iterator[str]:
    if not storage.exists(path):
        raise UsageError(f"{path}: no such file; give a text file, a text or noun a line")
    return iter(storage.read_bytes(path).decode("utf-8", "replace").splitlines())


def vocabulary(
    known: Sequence[str], tagged: Tagger | None, texts: Callable[[], Iterable[str]], *, texts_at_least: int
) -> list[str]:
    """The nouns of lists, and those that a tagger finds, where there is one, that stand in so many texts; sorted.

    Texts are gone through once for lists, once for the tagger.
    """
    nouns = set(of_lists(known, texts(), texts_at_least=texts_at_least) if known else [])
    return sorted(nouns.union(of_tagger(tagged, texts(), texts_at_least=texts_at_least) if tagged else []))


def of_lists(lists: Iterable[str], texts: Iterable[str], *, texts_at_least: int) -> list[str]:
    """The nouns of word lists that stand in so many texts, sorted; of `texts_at_least` = 0 all of them."""
    known, counts = {" ".join(_words(line)) for line in lists} - {""}, Counter[str]()
    for text in texts:
        words = _words(text)
        firsts = range(len(words))
        phrases = {" ".join(words[first : first + count]) for first in firsts for count in range(1, WORDS_AT_MOST + 1)}
        counts.update(phrases & known)
    return sorted(noun for noun in known if counts[noun] >= texts_at_least)


def _words(text: str) -> list[str]:
    """The words of a text in lower case: letters, with hyphens and apostrophes within."""
    return [word.lower() for word in _WORD.findall(text)]


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
        for text in of_spacy.pipe(texts, batch_size=256):
            yield [token.lemma_.lower() for token in text if token.pos_ == "NOUN" and token.is_alpha]

    return tagged
