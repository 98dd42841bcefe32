"""`altalign nlip caption RUN`: a caption of the model's own for every pair of a training's data, by key.

    RUN/captions/captions.parquet   key, caption, log_probability

Images are those of evaluation, whole; what stands for the caption in the text is a single mask. A command that was
stopped goes on where it was; ranks take parts in turn.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import compress

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
from altalign.train.model.bart import BartTower
from altalign.train.model.vision_transformer import VisionTower
from altalign.train.papers.nlip.captions import decoding
from altalign.train.papers.nlip.captions.decoding import Written
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


def write(run: str, *, step: int | None = None) -> int:
    """Write the captions for the pairs that a run was trained on; gives the exit code.

    Raises:
        UsageError: there is no such run, or it has no captioner.
    """
    trained = encoders.trained(run, step=step)
    with joined(trained.config.loop.device) as ranks:
        of_data(trained, trained.config, ranks)
    return 0


def of_data(trained: Trained, data: TrainConfig, ranks: Ranks) -> None:
    """The same of a checkpoint that is open, for the pairs of `data`, in whose folder the index is. A collective.

    Raises:
        UsageError: the model has no captioner.
    """
    config = trained.config
    alone = Encoders(config, trained.model.to(ranks.device), trained.tokenizer, Ranks(0, 1, ranks.device))
    prompts = ranks.first_then_others(lambda: prompts_of(config))
    captions = Captions(alone, prompts)
    samples = ranks.first_then_others(lambda: samples_of(data))
    keys, numbers = by_key.in_order(samples)
    place = training_folder.path(config, *CAPTIONS.split("/"))
    asked = {
        "checkpoint": storage.read_json(str(trained.place / "manifest.json"))["model.safetensors"],
        "keys": sha256(keys.tobytes()).hexdigest(),
        "settings": config.captioner.model_dump(mode="json"),
        "learned_from": storage.read_json(str(trained.place / "state.json")).get("manifests", {}),
        "concepts": prompts.concepts.digest if prompts is not None and prompts.concepts is not None else None,
    }
    is_new = by_key.write(
        place,
        SCHEMA,
        lambda first, after: captions.of(samples, numbers[first:after]),
        len(numbers),
        source=asked,
        size=_PART,
        ranks=ranks,
        what="captions",
    )
    if is_new and ranks.is_first:
        terminal.stdout().print(f"captions: {terminal.shown(place)}", soft_wrap=True)


class Captions:
    """A model that writes captions."""

    def __init__(self, of: Encoders, prompts: Prompts | None) -> None:
        """Of the model of a run; raises UsageError where it has no captioner."""
        if of.model.captioner is None or prompts is None:
            raise UsageError(
                f"{of.config.run.folder}: trained without a [captioner], it writes no captions; give it a weight"
            )
        self._encoders, self._config, self._tokenizer, self._prompts = of, of.config, of.tokenizer, prompts
        self._model, self._device = of.model, of.device
        special, number = of.tokenizer.special, of.tokenizer.number
        self._ends = {"first": number(special.first), "last": number(special.last)}
        self._never = [number(name) for name in special if name != special.last]

    @torch.no_grad()
    def of(self, samples: Samples, numbers: npt.NDArray[np.int64]) -> pa.Table:
        """Rows of the table for some pairs."""
        config = self._config
        threads = max(1, config.data.workers)
        rows = list[tuple[str, str, float | None]]()
        size = ENCODED_TOGETHER
        for some in samples.decoded(self._encoders.decode, numbers, size=size, threads=threads):
            written = iter(self.written(some.pixels, list(compress(some.keys, some.is_whole))))
            for key, own, is_whole in zip(some.keys, some.captions, some.is_whole, strict=True):
                one = next(written) if is_whole else None
                rows.append((key, self._tokenizer.shown(one.tokens), one.log_p) if one else (key, own, None))
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)

    def shown(self, pixels: torch.Tensor, identities: Sequence[str]) -> list[str]:
        """Captions of pixels (n, 3, h, w) of images that are of no pair, so without concepts, with n identities."""
        keys = [sha256(identity.encode()).hexdigest()[:32] for identity in identities]
        return [self._tokenizer.shown(one.tokens) for one in self.written(pixels, keys)]

    def written(self, pixels: torch.Tensor, keys: list[str]) -> list[Written]:
        """Captions for pixels (n, 3, h, w) of the pairs of n keys."""
        if not keys:
            return []
        model, chosen = self._model, self._config.captioner
        assert isinstance(model.image_tower, VisionTower)
        assert isinstance(model.text_tower, BartTower)
        assert model.captioner is not None
        texts = padded(self._prompts.without_captions(self._tokenizer, keys), chosen.tokens_at_most)
        tokens, mask = (one.to(self._device) for one in texts)
        states = model.image_tower.states(pixels.to(self._device))
        memory, attended = model.captioner.memory(states[:, 1:], model.text_tower.states(tokens, mask), mask)
        asked = partial(_next, model.captioner, model.text_tower.words, memory, attended)
        at_most = self._tokenizer.tokens_at_most - 2
        limits = {"at_least": min(_PIECES_AT_LEAST, at_most), "at_most": at_most, "never": self._never}
        return decoding.beam(asked, len(keys), beams=chosen.beams, **self._ends, **limits)


def _next(
    captioner: torch.nn.Module,
    words: torch.nn.Module,
    memory: torch.Tensor,
    mask: torch.Tensor,
    tokens: torch.Tensor,
    of_item: torch.Tensor,
) -> torch.Tensor:
    """Log-probabilities of the token after beginnings; all of a beginning is computed again."""
    of_item = of_item.to(memory.device)
    states = captioner.states(words, tokens.to(memory.device), memory[of_item], mask[of_item])  # type: ignore[operator]
    return captioner.logits(words, states[:, -1]).float().log_softmax(1)  # type: ignore[operator]
