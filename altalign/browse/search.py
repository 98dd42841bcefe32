"""Search: the pairs whose images are nearest to texts and pictures, or whose captions have words.

What is near is decided by embeddings, scores of kind `embedding`, and by the model that made them. They are read into
an index once the pairs are read. A search is JSON: `terms`, each a `text`, a `pair` (its key), the `url` of an image
of the run or a `picture` that was given, perhaps `minus`; and `with`, the name of an embedding.
"""

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from altalign.browse.filters import literal
from altalign.browse.pairs import Pairs
from altalign.browse.vectors import Vectors, of_lists
from altalign.data import scores as score_files
from altalign.data.reasons import KEPT
from altalign.data.scores import DROPPED, Score
from altalign.errors import AltalignError, UsageError, one_line
from altalign.filters import pixels
from altalign.models.model import Floats, Model, normal
from altalign.pipelines.images.measuring import enough_memory
from altalign.pipelines.score.models import encoder

NEAREST = 1000  # pairs that a page shows of a search
TERMS_AT_MOST = 16
WORDS_AT_MOST = 200
PICTURES_KEPT, SEARCHES_KEPT = 16, 8
WORDS = "words"  # what has ranked, where no embedding has
_KINDS = {"text": str, "url": str, "picture": str, "pair": str}
_OF_RUN = {  # the column that has what names an image of the run, and what is said where none has it
    "pair": ("key", "the run has no such pair"),
    "url": ("image_url", "no image of the run has this URL; give the picture itself"),
}
_PUNCTUATION = ".,;:!?\"'()[]…“”„‘’«»¡¿、。，！？"  # around words, not of them
# Thai, Lao, Burmese, Khmer, CJK and what follows it
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0010ffff]")


class Nearest(NamedTuple):
    """What a search found, the nearest first: numbers of pairs, cosines (or shares of words), and what ranked them."""

    numbers: npt.NDArray[np.uint32]
    values: Floats
    by: str


class _Term(NamedTuple):
    kind: str
    value: Any
    is_minus: bool


class Embeddings:
    """The embeddings of a run's images by one score: an index of them, and their model."""

    def __init__(self, pairs: Pairs, score: Score):
        self.name, self._pairs, self._score = score.name, pairs, score
        self.model = str(score.facts["settings"].get("model", ""))
        self.has_texts = bool(score.facts["rests_on"]["texts"])
        self.total, self.read = sum(file["rows"] for file in score.files.values()), 0
        self._numbers, self._index = list[npt.NDArray[np.uint32]](), None
        self._lock, self._encoder = threading.Lock(), None

    def fill(self) -> None:
        """Read all of them. Raises UnreadableError: a file is damaged."""
        chunks = self._chunks()
        if (first := next(chunks, None)) is not None:
            self._index = Vectors.build(chain([first], chunks))
        self._numbers = [np.concatenate([np.zeros(0, np.uint32), *self._numbers])]
        self.read = self.total  # files that are of other side-cars were passed over

    @property
    def note(self) -> str:
        """What of the run it lacks; empty: nothing."""
        every = self._pairs.digests.items()
        lacks = sum(self._score.files.get(shard, {}).get("of") != digest for shard, digest in every)
        return f"{self.name} lacks {lacks:,} of {len(every):,} shards; `altalign score` adds them." if lacks else ""

    def close(self) -> None:
        """Delete the index."""
        if self._index is not None:
            self._index.close()

    def _chunks(self) -> Iterator[Floats]:
        """The embeddings of each file that has some; the numbers of their pairs go to `_numbers`."""
        pairs = self._pairs
        for file, start in zip(pairs.files, pairs.starts, strict=True):
            if pairs.is_stopped:
                return
            if file.shard and self._score.has(file.shard, pairs.digests[file.shard]):
                rows, vectors = of_lists(self._score.values(file.shard, [self.name])[self.name])
                self.read += self._score.files[file.shard]["rows"]
                if len(rows):
                    self._numbers.append((start + rows).astype(np.uint32))
                    yield vectors
        if DROPPED in self._score.files:
            rows, vectors = of_lists((values := self._score.values(DROPPED))[self.name])
            keys = values["key"].to_pylist()
            places = {keys[row]: place for place, row in enumerate(rows.tolist())}
            listed = ", ".join(map(literal, places)) or "NULL"
            found = pairs.query(f"SELECT n, key FROM pairs WHERE reason <> '{KEPT}' AND key IN ({listed}) ORDER BY n")
            self.read += len(keys)
            if found:
                self._numbers.append(np.array([n for n, _ in found], np.uint32))
                yield vectors[[places[key] for _, key in found]]

    def nearest(self, query: Floats, k: int, among: npt.NDArray[np.uint32] | None) -> Nearest:
        """The k pairs, of some or of all, that are nearest to a vector of length 1."""
        if self._index is None:
            return Nearest(np.zeros(0, np.uint32), np.zeros(0, np.float32), self.name)
        numbers, rows = self._numbers[0], None
        if among is not None:
            is_in = np.zeros(self._pairs.total, np.bool_)
            is_in[among] = True
            rows = np.flatnonzero(is_in[numbers]).astype(np.uint32)
        found, cosines = self._index.search(query, k, rows)
        return Nearest(numbers[found], cosines, self.name)

    def of_pair(self, number: int) -> Floats:
        """The embedding of a pair's image. Raises UsageError: it has none."""
        file, row, key = self._pairs.place(number)
        values = None
        if file.shard and self._score.has(file.shard, self._pairs.digests[file.shard]):
            values = self._score.values(file.shard)
        elif not file.shard and DROPPED in self._score.files:
            values = self._score.values(DROPPED)
            keys = values["key"].to_pylist()
            row = keys.index(key) if key in keys else -1
        if values is not None:
            rows, vectors = of_lists(values[self.name])
            if len(place := np.flatnonzero(rows == row)):
                return vectors[place[0]]
        raise UsageError(f"{key or number}: no embedding in {self.name}, for no image is at hand, or it is flat")

    def of_text(self, text: str) -> Floats:
        """The embedding of a text. Raises UsageError: the model has none."""
        if not self.has_texts:
            raise UsageError(
                f'{self.name} embeds no text; score the run with a model that does (kind = "embedding"), or search by '
                "pictures alone"
            )
        return self.checked(normal(self.encoder().of_texts([text]))[0], f"the text {text[:40]!r}")

    def of_picture(self, data: bytes, name: str) -> Floats:
        """The embedding of an image file. Raises UsageError: it is none, or the model refuses it."""
        most = self._pairs.run.config.image.pixels_at_most
        how = {"colour": True, "pixels_at_most": most, "short_side_px": pixels.FULL_SIZE_PX}
        with enough_memory(name, data, **how):
            image = pixels.decode(data, **how)
            if image.pixels is None:
                raise UsageError(f"{name}: no image that can be decoded, of {most:,} pixels at most")
            return self.checked(normal(self.encoder().of_images([self.encoder().prepare(image.pixels)]))[0], name)

    def checked(self, vector: Floats, what: str) -> Floats:
        """A vector. Raises UsageError: it is none; `what` says of what it would be."""
        if not np.isfinite(vector).all():
            raise UsageError(f"{what} has no embedding in {self.name}: it has no structure, or the model refuses it")
        return vector

    def encoder(self) -> Model:
        """The model. Raises UsageError: it is not there, or not the one that made the embeddings."""
        with self._lock:
            if self._encoder is None:
                try:
                    model = encoder(self.model, f"{self._score.folder}: model")
                except UsageError as error:
                    raise UsageError(f"{error}; relative paths are of the working directory") from None
                if model.digest != self._score.facts["rests_on"]["model"]:
                    raise UsageError(
                        f"{self.model or model.name}: not as it was when {self._score.folder} was measured; measure it "
                        "again with --anew"
                    )
                self._encoder = model
            return self._encoder


class Search:
    """Searches in a run. Threads may search at once; they wait until all embeddings are read."""

    def __init__(self, pairs: Pairs):
        self._pairs = pairs
        every = [Embeddings(pairs, each) for each in score_files.all_of(pairs.run.folder) if each.is_embedding]
        self.embeddings = {each.name: each for each in sorted(every, key=lambda each: not each.has_texts)}
        self.total = sum(each.total for each in every)
        self.is_over, self.trouble = threading.Event(), ""
        self._pictures, self._found = OrderedDict[str, bytes](), OrderedDict[object, Nearest]()
        self._lock = threading.Lock()

    @property
    def read(self) -> float:
        """The share of the embeddings that is read."""
        return self.done / self.total if self.total else 1.0

    @property
    def done(self) -> int:
        """How many embeddings are read."""
        return sum(each.read for each in self.embeddings.values())

    @property
    def notes(self) -> list[str]:
        """What embeddings lack of the run."""
        return [each.note for each in self.embeddings.values() if each.note]

    def fill(self) -> None:
        """Read all embeddings, once the pairs are read; what cannot be read ends it, and `trouble` says why."""
        try:
            self._pairs.is_over.wait()
            if not self._pairs.is_stopped:
                for each in self.embeddings.values():
                    each.fill()
        except Exception as error:
            self.trouble = one_line(error)
        finally:
            self.is_over.set()

    def close(self) -> None:
        """Delete the temporary files of indexes."""
        for each in self.embeddings.values():
            each.close()

    def keep(self, picture: bytes) -> str:
        """Keep a picture to search by; gives its name. The last 16 are kept."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._pictures[name] = picture
            while len(self._pictures) > PICTURES_KEPT:
                self._pictures.popitem(last=False)
        return name

    def nearest(self, where: str, asked: object, k: int = NEAREST) -> Nearest:
        """The k pairs that a condition in SQL holds for and that a search finds, the nearest first.

        Raises UsageError: it is no search, or cannot be answered by what the run has.
        """
        terms, name = _terms(asked)
        self.is_over.wait()
        if trouble := self.trouble or self._pairs.trouble:
            raise AltalignError(f"the run cannot be searched: {trouble}")
        if self._pairs.is_stopped:
            raise AltalignError(f"{self._pairs.run.folder}: closed while it was searched")
        question = (where, terms, name, k)
        if (found := self._found.get(question)) is None:
            found = self._answer(where, terms, name, k)
            with self._lock:
                self._found[question] = found
                while len(self._found) > SEARCHES_KEPT:
                    self._found.popitem(last=False)
        return found

    def _answer(self, where: str, terms: Sequence[_Term], name: str, k: int) -> Nearest:
        if name and name not in self.embeddings:
            known = ", ".join(self.embeddings) or "none"
            raise UsageError(f"{name!r}: no embedding of the run (there are: {known})")
        first = next(iter(self.embeddings.values()), None)
        if all(each.kind == "text" for each in terms) and not (name or (first and first.has_texts)):
            return self._by_words(where, terms, k)
        chosen = self.embeddings[name] if name else first
        if chosen is None:
            raise UsageError('the run has no embeddings; `altalign score` measures them (kind = "embedding")')
        query = np.zeros(1, np.float32)
        for term in terms:
            vector = self._vector(chosen, term)
            query = query - vector if term.is_minus else query + vector
        among = None if where == "true" else self._pairs.numbers(where)
        return chosen.nearest(chosen.checked(normal(query), "what is left of the search"), k, among)

    def _vector(self, chosen: Embeddings, term: _Term) -> Floats:
        match term.kind:
            case "text":
                return chosen.of_text(term.value)
            case "picture":
                if (data := self._pictures.get(term.value)) is None:
                    raise UsageError("that picture is not kept any more; give it again")
                return chosen.of_picture(data, "the picture")
        column, repair = _OF_RUN[term.kind]
        found = self._pairs.query(
            f"SELECT n FROM pairs WHERE {column} = {literal(term.value)} ORDER BY reason <> '{KEPT}', n LIMIT 1"
        )
        if not found:
            raise UsageError(f"{term.value[:200]}: {repair}")
        return chosen.of_pair(found[0][0])

    def _by_words(self, where: str, terms: Sequence[_Term], k: int) -> Nearest:
        """Captions that have most of the words, then the shorter ones; none that has a word of a `minus`."""

        def holds(*, is_minus: bool) -> list[str]:
            every = (word for term in terms if term.is_minus is is_minus for word in term.value.split())
            words = (word.strip(_PUNCTUATION) or word for word in every)
            return [has_word(word) for word in {word.lower(): word for word in words}.values()]

        has, without = holds(is_minus=False), holds(is_minus=True)
        if not has:
            raise UsageError("no word that captions should have; give a text that is not minus")
        if (words := len(has) + len(without)) > WORDS_AT_MOST:
            raise UsageError(f"a text of {words:,} words; captions are searched for {WORDS_AT_MOST} at most")
        share = f"({' + '.join(f'{each}::INT' for each in has)}) / {len(has)}"
        none = "".join(f" AND NOT {each}" for each in without)
        found = self._pairs.query(
            f"SELECT n, {share} AS share FROM pairs WHERE {where} AND ({' OR '.join(has)}){none} "
            f"ORDER BY share DESC, length(caption), n LIMIT {int(k)}"
        )
        numbers, values = zip(*found, strict=True) if found else ((), ())
        return Nearest(np.array(numbers, np.uint32), np.array(values, np.float32), WORDS)


def has_word(word: str) -> str:
    """Whether a caption has a word, as it is or with an ending; of scripts without spaces, also within others."""
    lower = f"lower({literal(word)})"  # by DuckDB, as of captions: Python has another sigma at the end of a word
    has = f"contains(lower(caption), {lower})"
    if _WITHOUT_SPACES.search(word):
        return has
    start = rf"'(^|[^\pL\pM\pN])' || regexp_escape({lower})"
    return f"({has} AND regexp_matches(lower(caption), {start}))"


@contextmanager
def searching(pairs: Pairs) -> Iterator[Search]:
    """The searches in a run; a thread reads its embeddings meanwhile."""
    search = Search(pairs)
    thread = threading.Thread(target=search.fill, name="embeddings", daemon=True)
    thread.start()
    try:
        yield search
    finally:
        pairs.stop()
        thread.join()
        search.close()


def _terms(asked: object) -> tuple[tuple[_Term, ...], str]:
    """The terms of a search, and the name of the embedding; empty: any. Raises UsageError: it is no search."""
    terms = asked.get("terms") if isinstance(asked, Mapping) else None
    if not isinstance(asked, Mapping) or not isinstance(terms, list) or not 0 < len(terms) <= TERMS_AT_MOST:
        raise UsageError(f"a search is an object of terms, {TERMS_AT_MOST} at most, not {asked!r:.200}")
    name = asked.get("with") or ""
    if not isinstance(name, str):
        raise UsageError(f"with: {name!r:.200} is no name of an embedding")
    return tuple(map(_term, terms)), name


def _term(asked: object) -> _Term:
    if isinstance(asked, Mapping):
        given = [(kind, asked[kind]) for kind in _KINDS if kind in asked]
        if len(given) == 1 and type(given[0][1]) is _KINDS[given[0][0]]:
            kind, value = given[0]
            if isinstance(value, str):
                literal(value)  # refuses what is no text
            return _Term(kind, value, asked.get("minus") is True)
    raise UsageError(f"a term of a search is a text, url, picture or pair, not {asked!r:.200}")
