"""Batches of one process, read and decoded by processes of its own; their order is the same however many there are.

A global batch is what the sampler has under its number; a rank has its `share` of that, which workers make in pieces. A
pair whose image cannot be decoded is reported, and a spare of the same source takes its place (`Order.spare`), a pure
function of the seed and the place in the run; it may be of an image that the batch has already.
"""

import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from altalign import storage
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.machine import children, interrupts
from altalign.train.data import augment, captions
from altalign.train.data.batches import Batch, padded, widened
from altalign.train.data.captions import Prompts, Swapped
from altalign.train.data.on_device import Decoder, Undecoded, undecoded
from altalign.train.data.order import Order, Sampler
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.random_bits import Numbers
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.run.ranks import share
from altalign.train.settings.data import DataSettings

_PIECE = 64  # pairs that a worker makes at a time, at least
_PIECES_AT_MOST = 32  # of a batch: each piece on its way keeps three files open, of 1,024 that a process may have
_AHEAD = 2  # pieces of each worker, at least, that are made before they are taken
_SPARES_AT_MOST = 100  # one after the other: then it is not this image or that
_CPU = torch.device("cpu")
_UNDECODABLE_FILE = "undecodable.jsonl"


@dataclass(frozen=True)
class Undecodable:
    """A line of undecodable.jsonl: a pair whose image cannot be decoded, its place, and the pair that replaced it."""

    batch: int
    place: int  # in the global batch
    key: str
    shard: str
    error: str
    spare: str  # its key


class _Piece(NamedTuple):
    """Pairs that are next to each other in a global batch."""

    batch: int
    first: int  # place in the global batch
    draws: Numbers
    epochs: Numbers
    is_last: bool  # of its batch, on this rank


class _Made(NamedTuple):
    """What a worker made of a piece. Images that the device decodes are not in the batch, but here by their places."""

    batch: Batch
    undecodable: list[Undecodable]
    undecoded: dict[int, Undecoded]


def batches(
    samples: Samples,
    sampler: Sampler,
    tokenizer: CaptionTokenizer | ClassNumbers,
    settings: DataSettings,
    *,
    seed: int,
    first_batch: int,
    after_batch: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    undecodable: Callable[[Undecodable], None],
    swapped: Swapped | None = None,
    prompts: Prompts | None = None,
    device: torch.device = _CPU,
) -> Generator[Batch, None, None]:
    """This rank's share of the global batches `first_batch` … `after_batch` - 1 (None: without end).

    Closing the iterator ends the workers. Batches are counted from 0 at the start of the training. `undecodable` takes
    each undecodable pair of this rank, in order, before the batch is given. For a GPU, batches are in memory that it
    copies from while other work goes on.

    Raises UsageError: there are more processes than pairs in a global batch; UnreadableError: a tar is not as the index
    has it, or 100 spares one after the other do not decode; AltalignError: a worker ended by itself: the machine has
    too little memory, say.
    """
    if sampler.size < ranks:
        raise UsageError(
            f"[loop] global_batch = {sampler.size:,}, and {ranks:,} processes train: some would have no pair; give "
            "more, or start fewer"
        )
    maker = _Maker(samples, sampler.order, sampler.size, tokenizer, settings, seed, swapped, prompts)
    own, local = share(sampler.size, rank, ranks), -(-sampler.size // ranks)
    size = max(_PIECE, -(-local // _PIECES_AT_MOST))

    def pieces() -> Iterator[_Piece]:
        for number in range(first_batch, after_batch) if after_batch is not None else count(first_batch):
            draws, epochs = sampler.batch(number)
            for first in own[::size]:
                after = min(own.stop, first + size)
                yield _Piece(number, first, draws[first:after], epochs[first:after], after == own.stop)

    workers, parts = settings.workers, list[Batch]()
    made = _by_workers(maker, pieces(), workers, -(-local // size)) if workers else (maker[piece] for piece in pieces())
    decoder = Decoder(device, settings.crop_px) if settings.decoding == "device" else None
    try:
        for piece, part in made:
            if decoder is not None and isinstance(part, _Made):
                try:
                    part = part._replace(batch=decoder.completed(part.batch, part.undecoded))
                except augment.UndecodableError:  # the piece is made again without it
                    by_itself = replace(maker, settings=settings.model_copy(update={"decoding": "full"}))
                    part = by_itself[piece][1]
            if isinstance(part, Exception):
                raise part
            for lost in part.undecodable:
                undecodable(lost)
            parts.append(part.batch)
            if piece.is_last:
                yield _joined(parts, pinned=device.type == "cuda")
                parts = []
    finally:
        made.close()


def ahead(batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
    """The same batches, each put together by a thread while the one before is trained on; closing it closes them."""
    with ThreadPoolExecutor(1, "batches") as thread:
        try:
            coming = thread.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = thread.submit(next, batches, None)
                yield batch
        finally:
            thread.submit(batches.close).result()


def log(folder: str) -> Callable[[Undecodable], None]:
    """Adds a line to undecodable.jsonl of a local folder for each pair that has none there: some batches come again."""
    path, known = storage.join(folder, _UNDECODABLE_FILE), set(logged(folder))

    def add(pair: Undecodable) -> None:
        line = json.dumps(asdict(pair), ensure_ascii=False)
        if line not in known:
            known.add(line)
            with storage.growing(path) as file:
                file.write(f"{line}\n".encode())

    return add


def logged(folder: str) -> list[str]:
    """The lines of undecodable.jsonl in a folder."""
    path = storage.join(folder, _UNDECODABLE_FILE)
    return storage.read_bytes(path).decode().splitlines() if storage.exists(path) else []


@dataclass(frozen=True)
class _Maker(Dataset[Any]):
    """Makes pieces, in any process."""

    samples: Samples
    order: Order
    size: int  # of a global batch
    tokenizer: CaptionTokenizer | ClassNumbers
    settings: DataSettings
    seed: int
    swapped: Swapped | None
    prompts: Prompts | None

    def __getitem__(self, piece: _Piece) -> "tuple[_Piece, _Made | Exception]":
        """A piece, or the error for the process that trains to raise."""
        try:
            return piece, self._made(piece)
        except Exception as error:
            if not isinstance(error, AltalignError):
                error.add_note(traceback.format_exc())  # which does not travel by itself
            return piece, error

    def _made(self, piece: _Piece) -> _Made:
        pairs, lost = self.samples.drawn(piece.draws, piece.epochs, self.seed), list[Undecodable]()
        rows = self.samples.pairs(pairs)
        read = enumerate(zip(pairs.tolist(), rows, self.samples.read(rows), strict=True))
        seen = [self._seen(piece, place, *pair, lost) for place, pair in read]
        columns: Any = map(list, zip(*seen, strict=True))
        numbers, keys, texts, images = columns
        later = {place: image for place, image in enumerate(images) if isinstance(image, Undecoded)}
        whole = [image.permute(1, 2, 0) for image in images if not isinstance(image, Undecoded)]
        pixels = torch.stack(whole).permute(0, 3, 1, 2) if whole else torch.empty(0)  # channels last
        visits: Any = {"seed": self.seed, "epochs": piece.epochs.tolist(), "keys": keys}
        if self.swapped is not None:
            texts = self.swapped.swapped(texts, **visits)
        encoded = captions.tokens(texts, self.tokenizer, self.settings, **visits)
        tokens, mask = padded(encoded, self.tokenizer.tokens_at_most)
        prompted = None
        if self.prompts is not None and isinstance(self.tokenizer, CaptionTokenizer):
            width = self.prompts.settings.tokens_at_most
            prompted = padded(self.prompts.masked(texts, self.tokenizer, **visits), width, width=width)
        sources = self.samples.sources_of(np.array(numbers, np.int64))
        return _Made(Batch(keys, sources, visits["epochs"], pixels, tokens, mask, prompted), lost, later)

    def _seen(
        self, piece: _Piece, place: int, number: int, row: np.void, pair: tuple[bytes, str], lost: list[Undecodable]
    ) -> tuple[int, str, str, Tensor | Undecoded]:
        """Number, key, caption and image of a pair of a piece, or of its first spare that decodes; adds those lost."""
        draw, epoch, position = int(piece.draws[place]), int(piece.epochs[place]), piece.first + place
        failed: list[tuple[str, str, str]] = []
        for attempt in range(_SPARES_AT_MOST + 1):
            (data, caption), key = pair, key_of(row)
            visit: Any = {"seed": self.seed, "epoch": epoch, "key": key}
            try:
                image = undecoded(data, self.settings, **visit) if self.settings.decoding == "device" else None
                image = augment.training_pixels(data, self.settings, **visit) if image is None else image
            except augment.UndecodableError as error:
                failed.append((key, self.samples.shard_of(row), str(error)))
            else:
                lost += [Undecodable(piece.batch, position, *fault, spare=key) for fault in failed]
                return number, key, caption, image
            draw = self.order.spare(draw, piece.batch * self.size + position, attempt)
            numbers = self.samples.drawn(np.array([draw], np.int64), piece.epochs[place : place + 1], self.seed)
            number = int(numbers[0])
            (row,) = spare = self.samples.pairs(numbers)
            (pair,) = self.samples.read(spare)
        key, shard, why = failed[-1]
        raise UnreadableError(
            f"{shard}: {key}: {why}; so were {_SPARES_AT_MOST} others that were to take its place: what is wrong with "
            "the shards?"
        )


def _by_workers(
    maker: _Maker, pieces: Iterator[_Piece], workers: int, pieces_of_batch: int
) -> Generator[tuple[_Piece, _Made | Exception], None, None]:
    """Pieces in order, made by processes that a server forks, which has neither threads nor a GPU to deadlock on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["altalign.train.data.loader"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores: so the settings have it
        loader = DataLoader(
            maker,
            batch_size=None,
            sampler=pieces,  # pyright: ignore[reportArgumentType] - gone through once
            num_workers=workers,
            prefetch_factor=max(_AHEAD, -(-pieces_of_batch // workers)),  # a batch is made while another is trained on
            collate_fn=tuple,  # as it is
            multiprocessing_context=context,
            worker_init_fn=_begin_worker,
        )
        running: Any = iter(loader)

    def end() -> None:
        # not by deleting it: tracebacks hold it, and a worker may hear no SIGTERM
        running._shutdown_workers()
        children.end(running._workers)

    ending = Finalize(None, end, exitpriority=0)  # and before Python waits for its children
    try:
        yield from running
    except (RuntimeError, OSError, EOFError) as error:  # what befalls a worker at its work comes as a piece's error
        words = next(iter(str(error).splitlines()), "").rstrip(". ")
        raise AltalignError(
            f"a process that reads and decodes pairs has ended ({words}); is memory or /dev/shm full? fewer [data] "
            "workers need less"
        ) from None
    finally:
        ending()


def _begin_worker(_: int) -> None:
    """Ignore the signals that end the command: they are for the process that trains, which ends its workers itself."""
    children.end_with_parent()  # torch's own watch is on the server, which lives for as long as any worker does
    for number in interrupts.ENDING:
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _joined(parts: Sequence[Batch], *, pinned: bool) -> Batch:
    """One batch of pieces, its tokens as long as the longest's."""
    if len(parts) == 1 and not pinned:
        return parts[0]
    width = max(part.tokens.shape[1] for part in parts)
    texts = [(part.tokens, part.mask, *(part.prompted or ())) for part in (widened(part, width) for part in parts)]
    tokens, mask, *prompted = (torch.cat(tensors) for tensors in zip(*texts, strict=True))
    if pinned:
        tokens, mask, *prompted = (tensor.pin_memory() for tensor in (tokens, mask, *prompted))
    _, colours, height, across = parts[0].images.shape
    images = torch.empty(len(tokens), height, across, colours, dtype=torch.uint8, pin_memory=pinned)
    torch.cat([part.images.permute(0, 2, 3, 1) for part in parts], out=images)  # as memory has them: twice as fast
    names = ("keys", "sources", "epochs")
    rows: Any = {name: list(chain.from_iterable(getattr(part, name) for part in parts)) for name in names}
    of_captioner = (prompted[0], prompted[1]) if prompted else None
    return Batch(**rows, images=images.permute(0, 3, 1, 2), tokens=tokens, mask=mask, prompted=of_captioner)
