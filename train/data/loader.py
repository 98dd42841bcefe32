"""Batches of one process, read and decoded by processes of its own.

Their order depends on neither how many these are nor how many train.

A global batch is what the sampler has under its number, and a rank has its `share` of that.
Workers make pieces of that, and the batch is put together here.

A pair whose image cannot be decoded is reported, and a spare of the same source takes its place (`Order.spare`): a pure
function of the seed and the place in the run, so that every worker and rank count has the same. The spare may be of an
image that the batch has already.
"""

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.util import Finalize
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.machine import children, interrupts
from altalign.train.data import as_trained, augment
from altalign.train.data.batches import Batch, padded
from altalign.train.data.class_numbers import ClassNumbers
from altalign.train.data.nlip_captions import Prompts, Swapped
from altalign.train.data.on_device import Decoder, Undecoded
from altalign.train.data.order import Numbers, Order
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.data.undecodable import Undecodable
from altalign.train.run.ranks import share
from altalign.train.settings.training import DataSettings

_PIECE = 64  # pairs that a worker makes at a time, at least
_PIECES_AT_MOST = 32  # of a batch: each piece on its way keeps three files open, of 1,024 that a process may have
_AHEAD = 2  # pieces of each worker, at least, that are made before they are asked for
_SPARES_AT_MOST = 100  # one after the other: then it is not this image or that
_CPU = torch.device("cpu")


class GlobalBatches(Protocol):
    """`order.Sampler`, `order.OneSource` or `order.DistinctImages`."""

    order: Order
    size: int

    def batch(self, number: int) -> tuple[Numbers, Numbers]:
        """Pairs and epochs of a global batch."""
        ...


@dataclass(frozen=True)
class _Piece:
    """Pairs that are next to each other in a global batch."""

    batch: int
    first: int  # place in the global batch
    pairs: Numbers
    epochs: Numbers
    is_last: bool  # of its batch, on this rank


@dataclass(frozen=True)
class _Made:
    """What a worker made of a piece. Images that the device decodes are not in the batch, but here by their places."""

    batch: Batch
    undecodable: list[Undecodable]
    undecoded: dict[int, Undecoded] = field(default_factory=dict[int, Undecoded])


@dataclass(frozen=True)
class _Failed:
    """An error, for the process that trains to raise: torch would put a traceback into its words."""

    error: Exception


def batches(
    samples: Samples,
    sampler: GlobalBatches,
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

    Closing the iterator ends the workers.

    Args:
        samples: what the numbers of the sampler are of.
        sampler: global batches by their numbers.
        tokenizer: of captions.
        settings: sizes, flips, workers.
        seed: of augmentation.
        first_batch: counted from 0 at the start of the training, so that a run goes on where a checkpoint was.
        after_batch: the first that is not asked for.
        rank: of this process.
        ranks: how many processes train.
        undecodable: told of each undecodable pair of this rank, in order, before the batch is given.
        swapped: captions of a model that stand for those of noisy pairs.
        prompts: what a captioner reads beside the image.
        device: which trains. For a GPU, batches are in memory that it copies from while other work goes on.

    Raises:
        UsageError: there are more processes than pairs in a global batch.
        UnreadableError: a tar is not as the index has it, or 100 spares one after the other do not decode.
        AltalignError: a worker ended by itself: the machine has too little memory, say.
    """
    if sampler.size < ranks:
        raise UsageError(
            f"[loop] global_batch = {sampler.size:,}, and {ranks:,} processes train: some would have no pair; give "
            "more, or start fewer"
        )
    maker = _Maker(samples, sampler.order, sampler.size, tokenizer, settings, seed, swapped, prompts)
    local = -(-sampler.size // ranks)
    size = max(_PIECE, -(-local // _PIECES_AT_MOST))
    numbers = range(first_batch, after_batch) if after_batch is not None else count(first_batch)
    pieces = _pieces(sampler, numbers, rank, ranks, size)
    workers, of_batch = settings.workers, -(-local // size)
    made = _made_by_workers(maker, pieces, workers, of_batch) if workers else _made_here(maker, pieces)
    if settings.decoding == "device":
        made = _completed(made, Decoder(device, settings.crop_px), maker)
    yield from _of_pieces(made, undecodable, pinned=device.type == "cuda")


def _of_pieces(
    made: "Generator[tuple[_Piece, _Made], None, None]", undecodable: Callable[[Undecodable], None], *, pinned: bool
) -> Generator[Batch, None, None]:
    """Batches of the pieces that are made for them; closing the iterator closes that of the pieces."""
    parts: list[Batch] = []
    try:
        for piece, one in made:
            for found in one.undecodable:
                undecodable(found)
            parts.append(one.batch)
            if piece.is_last:
                yield _joined(parts, pinned=pinned)
                parts = []
    finally:
        made.close()


def _completed(
    made: "Generator[tuple[_Piece, _Made], None, None]", decoder: Decoder, maker: "_Maker"
) -> "Generator[tuple[_Piece, _Made], None, None]":
    """The pieces with the images that the device decodes; one with an undecodable image is made again without it."""
    try:
        for piece, one in made:
            try:
                yield piece, _Made(decoder.completed(one.batch, one.undecoded), one.undecodable)
            except augment.UndecodableError:
                yield _checked(maker.without_a_device()[piece])
    finally:
        made.close()


def ahead(batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
    """The same batches, each put together by a thread while the one before is trained on.

    Copying gigabytes takes a second that a GPU need not wait.

    Closing it closes them. What they read is then of that thread alone.
    """
    with ThreadPoolExecutor(1, "batches") as thread:
        try:
            coming = thread.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = thread.submit(next, batches, None)
                yield batch
        finally:
            thread.submit(batches.close).result()


def _pieces(sampler: GlobalBatches, numbers: Iterable[int], rank: int, ranks: int, size: int) -> Iterator[_Piece]:
    own = share(sampler.size, rank, ranks)
    for number in numbers:
        pairs, epochs = sampler.batch(number)
        for first in own[::size]:
            after = min(own.stop, first + size)
            yield _Piece(number, first, pairs[first:after], epochs[first:after], after == own.stop)


class _Maker(Dataset[Any]):
    """Makes pieces, in any process."""

    def __init__(
        self,
        samples: Samples,
        order: Order,
        size: int,
        tokenizer: CaptionTokenizer | ClassNumbers,
        settings: DataSettings,
        seed: int,
        swapped: Swapped | None,
        prompts: Prompts | None,
    ):
        self._swapped, self._prompts = swapped, prompts
        self._samples, self._order, self._size, self._tokenizer, self._settings, self._seed = (
            samples,
            order,
            size,
            tokenizer,
            settings,
            seed,
        )

    def __getitem__(self, piece: _Piece) -> "tuple[_Piece, _Made | _Failed]":
        try:
            return piece, self._made(piece)
        except AltalignError as error:
            return piece, _Failed(error)
        except Exception as error:
            error.add_note(traceback.format_exc())  # which does not travel by itself
            return piece, _Failed(error)

    def without_a_device(self) -> "_Maker":
        """One that decodes every image itself, from tars that it opens itself: it may work in another thread."""
        maker = copy(self)
        maker._samples = copy(self._samples)
        maker._settings = self._settings.model_copy(update={"decoding": "full"})
        return maker

    def _made(self, piece: _Piece) -> _Made:
        numbers, rows = piece.pairs.copy(), self._samples.pairs(piece.pairs)
        side = self._settings.crop_px
        images = torch.empty(len(numbers), side, side, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        captions, keys, found = [], [], []
        undecoded: dict[int, Undecoded] = {}
        for place, (data, caption) in enumerate(self._samples.read(rows)):
            row, attempt, epoch = rows[place], 0, int(piece.epochs[place])
            lost: list[tuple[str, str, str]] = []
            while True:
                key = key_of(row)
                try:
                    seen = as_trained.image(data, self._settings, seed=self._seed, epoch=epoch, key=key)
                    if isinstance(seen, Undecoded):
                        undecoded[place] = seen
                    else:
                        images[place - len(undecoded)] = seen
                    break
                except augment.UndecodableError as error:
                    lost.append((key, self._samples.shard_of(row), str(error)))
                if attempt == _SPARES_AT_MOST:
                    raise UnreadableError(
                        f"{lost[-1][1]}: {key}: {lost[-1][2]}; so were {attempt} others that were to take its place: "
                        "what is wrong with the shards?"
                    )
                numbers[place] = self._order.spare(
                    int(numbers[place]), piece.batch * self._size + piece.first + place, attempt
                )
                row = self._samples.pairs(numbers[place : place + 1])[0]
                ((data, caption),) = self._samples.read(self._samples.pairs(numbers[place : place + 1]))
                attempt += 1
            found += [Undecodable(piece.batch, piece.first + place, *one, spare=key) for one in lost]
            captions.append(caption)
            keys.append(key)
        drawn = {"seed": self._seed, "epochs": piece.epochs.tolist(), "keys": keys}
        if self._swapped is not None:
            captions = self._swapped.of(captions, **drawn)
        encoded = as_trained.tokens(captions, self._tokenizer, self._settings, **drawn)
        tokens, mask = padded(encoded, self._tokenizer.tokens_at_most)
        prompted = None
        if self._prompts is not None and isinstance(self._tokenizer, CaptionTokenizer):
            texts = self._prompts.of(captions, self._tokenizer, **drawn)
            prompted = padded(texts, width := self._prompts.settings.tokens_at_most, width=width)
        sources, epochs = self._samples.sources_of(numbers), piece.epochs.tolist()
        if undecoded:
            images = images[: len(keys) - len(undecoded)].clone()  # without the memory of the others
        return _Made(Batch(keys, sources, epochs, images, tokens, mask, prompted), found, undecoded)


def _made_here(maker: _Maker, pieces: Iterator[_Piece]) -> "Generator[tuple[_Piece, _Made], None, None]":
    for piece in pieces:
        yield _checked(maker[piece])


def _made_by_workers(
    maker: _Maker, pieces: Iterator[_Piece], workers: int, pieces_of_batch: int
) -> "Generator[tuple[_Piece, _Made], None, None]":
    """Pieces in order, made by processes that a server forks.

    The server has neither threads nor a GPU: forking this process might deadlock.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["altalign.train.data.loader"])
    ahead = max(_AHEAD, -(-pieces_of_batch // workers))  # a batch is made while another is trained on
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores: so it was asked for
        loader = DataLoader(
            maker,
            batch_size=None,
            sampler=_Once(pieces),
            num_workers=workers,
            prefetch_factor=ahead,
            collate_fn=_as_it_is,
            multiprocessing_context=context,
            worker_init_fn=_begin_worker,
        )
        running = iter(loader)
    ending = Finalize(None, _end, (running,), exitpriority=0)  # and before Python waits for its children
    try:
        while True:
            try:
                one = next(running)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:  # what befalls a worker at its work comes as `_Failed`
                raise _worker_ended(error) from None
            yield _checked(one)
    finally:
        ending()


def _end(running: Any) -> None:
    """Ends the workers of an iterator of DataLoader.

    Not by deleting it: tracebacks hold it. One that does not end hears no SIGTERM.
    """
    running._shutdown_workers()
    children.end(running._workers)


class _Once:
    """What DataLoader takes for a sampler: goes through the pieces once."""

    def __init__(self, pieces: Iterator[_Piece]):
        self._pieces = pieces

    def __iter__(self) -> Iterator[_Piece]:
        return self._pieces


def _as_it_is(one: object) -> object:
    return one


def _begin_worker(_: int) -> None:
    """Ignore the signals that end the command: they are for the process that trains.

    It ends its workers itself, and they end where it was killed.

    Torch's own watch is on the server that forked a worker, and the server lives for as long as any worker does.
    """
    children.end_with_parent()
    for number in interrupts.ENDING:
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _checked(one: "tuple[_Piece, _Made | _Failed]") -> "tuple[_Piece, _Made]":
    piece, made = one
    if isinstance(made, _Failed):
        raise made.error
    return piece, made


def _worker_ended(error: Exception) -> AltalignError:
    words = next(iter(str(error).splitlines()), "").rstrip(". ")
    return AltalignError(
        f"a process that reads and decodes pairs has ended ({words}); is memory or /dev/shm full? fewer [data] workers "
        "need less"
    )


def _joined(parts: Sequence[Batch], *, pinned: bool) -> Batch:
    """One batch of pieces, its tokens as long as the longest's."""
    if len(parts) == 1 and not pinned:
        return parts[0]
    width = max(part.tokens.shape[1] for part in parts)
    rows = sum(map(len, parts))
    _, colours, height, across = parts[0].images.shape
    images = torch.empty(rows, height, across, colours, dtype=torch.uint8, pin_memory=pinned).permute(0, 3, 1, 2)
    tokens, mask = (torch.zeros(rows, width, dtype=kind, pin_memory=pinned) for kind in (torch.int64, torch.bool))
    first = 0
    for part in parts:
        after = first + len(part)
        images[first:after] = part.images
        tokens[first:after, : part.tokens.shape[1]], mask[first:after, : part.mask.shape[1]] = part.tokens, part.mask
        first = after
    keys, sources, epochs = (
        [one for part in parts for one in getattr(part, name)] for name in ("keys", "sources", "epochs")
    )
    prompted = None
    if all(part.prompted is not None for part in parts):
        both = zip(*(part.prompted for part in parts if part.prompted is not None), strict=True)
        of_tokens, of_mask = (torch.cat(tensors) for tensors in both)
        prompted = (of_tokens.pin_memory(), of_mask.pin_memory()) if pinned else (of_tokens, of_mask)
    return Batch(keys, sources, epochs, images, tokens, mask, prompted)
