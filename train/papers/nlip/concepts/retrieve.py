"""`altalign nlip concepts RUN …`: the nouns that a frozen model finds nearest to each image of curated runs.

OUT/concepts.parquet   key, concepts, similarity
OUT/nouns.txt          the vocabulary, a noun a line
OUT/concepts.json      runs, model, prompt, and what the vocabulary is of

A command that was stopped goes on where it was.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
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
from altalign.train.papers.nlip.concepts import vocabulary
from altalign.train.run.ranks import Ranks

SCHEMA = pa.schema(
    [
        ("key", pa.string()),  # of the pair
        (
            "concepts",
            pa.list_(pa.string()),
        ),  # nouns, the nearest first; none where the image cannot be decoded
        ("similarity", pa.list_(pa.float32())),  # of each, the cosine
    ]
)
_OURS = {"concepts.parquet", "concepts.json", "nouns.txt", "index", by_key.PARTS}
_BATCH = 256  # images, or prompts, that are encoded at a time
_PART = 16 * _BATCH  # pairs that are done before a file is written: what a stop costs
_THREADS = 2  # that decode
_UNDECODABLE = (ValueError, OSError)  # what an `Encoder` raises of an image

Vectors = npt.NDArray[np.float32]


def retrieve(
    runs: Sequence[str],
    out: str,
    *,
    model: str,
    texts: Sequence[str],
    lists: Sequence[str],
    texts_at_least: int,
    prompt: str,
    top: int,
) -> int:
    """Build the vocabulary, and write the concepts of every pair of finished runs; gives the exit code.

    Raises:
        UsageError: `out` is something else, or of other settings; no noun is left, or a run or the model cannot be
            opened.
    """
    _check_place(out)
    known = _known(lists)
    storage.sweep(out)
    encoder = torch_models.opened(model)
    index = storage.join(storage.local_folder(out), "index")
    samples = Samples.open(index, runs)
    nouns = _nouns(samples, texts, known, texts_at_least)
    keys, numbers = by_key.in_order(samples)
    place = storage.join(out, "concepts.parquet")
    asked = {
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
    if (before := by_key.known(place)) and before != asked:
        changed = ", ".join(name for name in asked if before.get(name) != asked[name])
        raise UsageError(f"{out}: its concepts are of other {changed}; give a new folder")
    terminal.stderr().print(f"{len(nouns):,} nouns, {len(samples):,} pairs", soft_wrap=True)
    storage.write_bytes(storage.join(out, "nouns.txt"), "".join(f"{noun}\n" for noun in nouns).encode())
    of = _Concepts(encoder, samples, nouns, prompt, top)
    by_key.write(
        place,
        SCHEMA,
        lambda first, after: of.table(numbers[first:after]),
        len(numbers),
        source=asked,
        size=_PART,
        ranks=Ranks(0, 1, torch.device("cpu")),
        what="concepts",
    )
    storage.delete(index)
    terminal.stdout().print(f"concepts: {terminal.shown(place)}", soft_wrap=True)
    return 0


def _check_place(out: str) -> None:
    """Refuse a place that holds something else.

    Raises:
        UsageError: it does.
    """
    if storage.kind(out) == "file" or {name for name in storage.entries(out) if not storage.is_partial(name)} - _OURS:
        raise UsageError(f"{out}: it is there already, and no folder of concepts; give a new one")


def _known(lists: Sequence[str]) -> list[str]:
    """The nouns of lists, none where a tagger finds them.

    Raises:
        UsageError: there is neither, or the lists have none.
    """
    if not lists and vocabulary.tagger() is None:
        raise UsageError(
            f"no --words, and no tagger is installed (spaCy with {vocabulary.TAGGER}): give files of nouns"
        )
    known = vocabulary.of_lists(chain.from_iterable(map(_lines, lists)), [], texts_at_least=0)
    if lists and not known:
        raise UsageError(f"{', '.join(lists)}: no noun in it; give files with a noun a line")
    return known


def _nouns(samples: Samples, texts: Sequence[str], known: Sequence[str], texts_at_least: int) -> list[str]:
    """The vocabulary: of the nouns that are known, or else of a tagger.

    They are counted over files of texts, or else over the captions of the runs.

    Raises:
        UsageError: it is empty.
    """
    counted = chain.from_iterable(map(_lines, texts)) if texts else chain.from_iterable(samples.captions())
    if known:
        nouns = vocabulary.of_lists(known, counted, texts_at_least=texts_at_least)
    else:
        tagged = vocabulary.tagger()
        assert tagged is not None
        nouns = vocabulary.of_tagger(tagged, counted, texts_at_least=texts_at_least)
    if not nouns:
        raise UsageError(
            f"no noun is in {texts_at_least} texts: no concept could be found; give other --words or --texts, or a "
            "lower --at-least"
        )
    return nouns


def _lines(path: str) -> Iterator[str]:
    if not storage.exists(path):
        raise UsageError(f"{path}: no such file; give a text file, a text or noun a line")
    return iter(storage.read_bytes(path).decode("utf-8", "replace").splitlines())


class Search:
    """The nearest of some vectors by inner product: by faiss where it is installed, or else by torch, both exact."""

    def __init__(self, vectors: Vectors, top: int, *, with_faiss: bool = True) -> None:
        self._vectors, self._top, self._index = vectors, top, None
        if with_faiss and find_spec("faiss"):
            import faiss  # pyright: ignore[reportMissingImports]  # no dependency of ours

            self._index = faiss.IndexFlatIP(vectors.shape[1])
            self._index.add(np.ascontiguousarray(vectors))

    def of(self, vectors: Vectors) -> tuple[Vectors, npt.NDArray[np.int64]]:
        """Products and numbers of the nearest to each vector, the nearest first: (n, top) both."""
        if self._index is not None:
            return self._index.search(np.ascontiguousarray(vectors), self._top)
        products = torch.from_numpy(vectors) @ torch.from_numpy(self._vectors).T
        best = products.topk(self._top, dim=1)
        return best.values.numpy(), best.indices.numpy()


class _Concepts:
    """The nouns of images; those of the vocabulary are encoded when the first image asks."""

    def __init__(self, encoder: Encoder, samples: Samples, nouns: Sequence[str], prompt: str, top: int) -> None:
        self._encoder, self._samples, self._nouns = encoder, samples, nouns
        self._prompts, self._top = [f"{prompt} {noun}".strip() for noun in nouns], min(top, len(nouns))

    @cached_property
    def _search(self) -> "Search":
        firsts = range(0, len(self._prompts), _BATCH)
        encoded = [_array(self._encoder.encode_text(self._prompts[first : first + _BATCH])) for first in firsts]
        return Search(np.concatenate(encoded), self._top)

    @torch.no_grad()
    def table(self, numbers: npt.NDArray[np.int64]) -> pa.Table:
        """Rows of the table for some pairs."""
        batches = self._samples.decoded(
            self._encoder.decode, numbers, size=_BATCH, threads=_THREADS, undecodable=_UNDECODABLE
        )
        tables = []
        for some in batches:
            found = iter(())
            if any(some.is_whole):
                products, places = self._search.of(_array(self._encoder.encode_image(some.pixels)))
                found = zip(products.tolist(), places.tolist(), strict=True)
            rows = [next(found) if is_whole else ([], []) for is_whole in some.is_whole]
            words = [[self._nouns[place] for place in of] for _, of in rows]
            tables.append(pa.table([some.keys, words, [list(of) for of, _ in rows]], schema=SCHEMA))
        return pa.concat_tables(tables)


def _array(embeddings: torch.Tensor) -> Vectors:
    return embeddings.float().cpu().numpy()
