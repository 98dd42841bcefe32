"""`altalign nlip caption RUN`: a caption of the model's own for every pair of a training's data, by key.

    RUN/captions/captions.parquet   key, caption, log_probability

Images are those of evaluation, whole; what stands for the caption in the text is a single mask. A command that was
stopped goes on where it was; ranks take parts in turn.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval.encoded import ENCODED_TOGETHER
from altalign.train.data import by_key
from altalign.train.data.batches import padded
from altalign.train.data.captions import Prompts
from altalign.train.data.samples import Samples
from altalign.train.data.training_data import CAPTIONS, prompts_of, samples_of
from altalign.train.exchange import encoders
from altalign.train.exchange.encoders import Encoders, Trained
from altalign.train.model.text_tower import BartTower
from altalign.train.model.vision_transformer import VisionTower
from altalign.train.run import training_folder
from altalign.train.run.ranks import Ranks, joined
from altalign.train.settings.training import TrainConfig

SCHEMA = pa.schema(
    [
        ("key", pa.string()),  # of the pair
        ("caption", pa.string()),  # the model's; the pair's own where the image cannot be decoded
        ("log_probability", pa.float32()),  # of all its word pieces and its end together; null likewise
    ]
)
_PART = 1024  # pairs that are written before a file is: what a stop costs
_PIECES_AT_LEAST = 5  # of a caption, BLIP's

# Of beginnings, int64 (n, length), and the number of the item of each, int64 (n,): log p of the next token, float32
# (n, vocabulary).
Next = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def caption(run: str, *, step: int | None = None) -> int:
    """Write the captions for the pairs that a run was trained on; gives the exit code.

    Raises UsageError: there is no such run, or it has no captioner.
    """
    trained = encoders.trained(run, step=step)
    with joined(trained.config.loop.device) as ranks:
        write(trained, trained.config, ranks)
    return 0


def write(trained: Trained, data: TrainConfig, ranks: Ranks) -> None:
    """The same of a checkpoint that is open, for the pairs of `data`, in whose folder the index is. A collective."""
    config = trained.config
    alone = Encoders(config, trained.model.to(ranks.device), trained.tokenizer, Ranks(0, 1, ranks.device))
    prompts = ranks.first_then_others(lambda: prompts_of(config))
    captions = Captions(alone, prompts)
    samples = ranks.first_then_others(lambda: samples_of(data))
    keys, numbers = by_key.in_order(samples)
    place = training_folder.path(config, *CAPTIONS.split("/"))
    basis = {
        "checkpoint": trained.digest,
        "keys": sha256(keys.tobytes()).hexdigest(),
        "settings": config.captioner.model_dump(mode="json"),
        "learned_from": storage.read_json(str(trained.place / "state.json")).get("manifests", {}),
        "concepts": prompts.concepts.digest if prompts is not None and prompts.concepts is not None else None,
    }
    making = by_key.Making(place, basis, ranks, "captioning")

    def of_pairs(first: int, after: int, advance: Callable[[int], None]) -> pa.Table:
        return captions.table(samples, numbers[first:after], advance)

    if making.write(SCHEMA, of_pairs, len(numbers), size=_PART) and ranks.is_first:
        terminal.stdout().print(f"captions: {terminal.shown(place)}", soft_wrap=True)


class Captions:
    """A model that writes captions."""

    def __init__(self, model: Encoders, prompts: Prompts | None) -> None:
        """Of the model of a run; raises UsageError where it has no captioner."""
        if model.model.captioner is None or prompts is None:
            raise UsageError(
                f"{model.config.run.folder}: trained without a [captioner], it writes no captions; give it a weight"
            )
        self._encoders, self._config, self._tokenizer, self._prompts = model, model.config, model.tokenizer, prompts
        special, number = model.tokenizer.special, model.tokenizer.number
        at_most = model.tokenizer.tokens_at_most - 2
        self._limits = {"at_least": min(_PIECES_AT_LEAST, at_most), "at_most": at_most}
        self._ends = {"first": number(special.first), "last": number(special.last)}
        self._never = [number(name) for name in special if name != special.last]

    @torch.no_grad()
    def table(
        self,
        samples: Samples,
        numbers: npt.NDArray[np.int64],
        advance: Callable[[int], None] = lambda _: None,
    ) -> pa.Table:
        """Rows of the table for some pairs; `advance` is called with how many have one since."""
        threads, rows = max(1, self._config.data.workers), list[tuple[str, str, float | None]]()
        for some in samples.decoded(self._encoders.decode, numbers, size=ENCODED_TOGETHER, threads=threads):
            written = iter(self.written(some.pixels, list(compress(some.keys, some.is_whole))))
            for key, own, is_whole in zip(some.keys, some.captions, some.is_whole, strict=True):
                one = next(written) if is_whole else None
                rows.append((key, self._tokenizer.shown(one.tokens), one.log_p) if one else (key, own, None))
            advance(len(some.keys))
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)

    def shown(self, pixels: torch.Tensor, identities: Sequence[str]) -> list[str]:
        """Captions of pixels (n, 3, h, w) of images that are of no pair, so without concepts, with n identities."""
        keys = [sha256(identity.encode()).hexdigest()[:32] for identity in identities]
        return [self._tokenizer.shown(one.tokens) for one in self.written(pixels, keys)]

    def written(self, pixels: torch.Tensor, keys: list[str]) -> "list[Written]":
        """Captions for pixels (n, 3, h, w) of the pairs of n keys."""
        if not keys:
            return []
        model, chosen, device = self._encoders.model, self._config.captioner, self._encoders.device
        assert isinstance(model.image_tower, VisionTower)
        assert isinstance(model.text_tower, BartTower)
        assert model.captioner is not None
        of_captions = [[self._tokenizer.number(self._tokenizer.special.mask)]] * len(keys)
        texts = padded(self._prompts.framed(of_captions, self._tokenizer, keys), chosen.tokens_at_most)
        tokens, mask = (one.to(device) for one in texts)
        states, captioner = model.image_tower.states(pixels.to(device)), model.captioner
        memory, attended = captioner.memory(states[:, 1:], model.text_tower.states(tokens, mask), mask)
        words = model.text_tower.words

        def next_of(tokens: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            """All of a beginning is computed again."""
            items = items.to(device)
            states = captioner.states(words, tokens.to(device), memory[items], attended[items])
            return captioner.logits(words, states[:, -1]).float().log_softmax(1)

        return beam(next_of, len(keys), beams=chosen.beams, never=self._never, **self._ends, **self._limits)


# Beam search ----------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """The tokens of a caption, without first and last, and the sum of the log p of these and of the last."""

    tokens: list[int]
    log_p: float


def beam(
    next_of: Next, items: int, *, first: int, last: int, at_least: int, at_most: int, beams: int, never: Sequence[int]
) -> list[Written]:
    """The best caption that beam search finds for each of so many items, by log p over the number of tokens.

    `first` and `last` begin and end each caption, which has `at_least` to `at_most` tokens between them, none of
    `never`; `beams` beginnings of each item are gone on with. Of the best 2 `beams` those that end are captions; an
    item that has `beams` of these does not go on.
    """
    tokens, of_item, sums = torch.full((items, 1), first), torch.arange(items), torch.zeros(items)
    ended: list[list[Written]] = [[] for _ in range(items)]
    for length in range(at_most + 1):
        log_p = next_of(tokens, of_item).float().cpu()
        log_p[:, list(never)] = -torch.inf
        if length < at_least:
            log_p[:, last] = -torch.inf
        scores, kept = sums[:, None] + log_p, list[tuple[int, int, float]]()  # row, next token, sum
        for item in of_item.unique_consecutive().tolist():
            rows = torch.nonzero(of_item == item)[:, 0]
            if length == at_most:  # no more but the end
                ended[item] += [Written(tokens[row, 1:].tolist(), float(scores[row, last])) for row in rows]
                continue
            flat, of_this = scores[rows].flatten(), list[tuple[int, int, float]]()
            best = flat.topk(min(2 * beams, len(flat)))
            for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                row, word = int(rows[place // scores.shape[1]]), place % scores.shape[1]
                if word == last and score > -torch.inf:
                    ended[item].append(Written(tokens[row, 1:].tolist(), score))
                elif score > -torch.inf and len(of_this) < beams:
                    of_this.append((row, word, score))
            if len(ended[item]) < beams:
                kept += of_this
        if not kept:
            break
        before, words, sums_after = (list(column) for column in zip(*kept, strict=True))
        tokens = torch.cat([tokens[before], torch.tensor(words)[:, None]], 1)
        of_item, sums = of_item[before], torch.tensor(sums_after)
    return [max(some, key=lambda one: one.log_p / (len(one.tokens) + 1)) for some in ended]
