"""What a run is trained on: its pairs, their order, and the tokenizer of their captions.

Rank 0 makes it, and all open it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from altalign import storage
from altalign.errors import UsageError
from altalign.train import training_folder
from altalign.train.data import packed, tokenizer
from altalign.train.data.loader import GlobalBatches
from altalign.train.data.order import DistinctImages, OneSource, Order, Sampler, Waiting
from altalign.train.data.samples import Samples
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.ranks import Ranks
from altalign.train.settings import TrainConfig


@dataclass(frozen=True)
class TrainingData:
    """Pairs, global batches of them by number, and the tokenizer."""

    samples: Samples
    sampler: GlobalBatches
    tokenizer: CaptionTokenizer

    @property
    def lineage(self) -> dict[str, Any]:
        """What ties weights to the data that they come from: digests."""
        return {
            "manifests": dict(self.samples.runs.manifests),
            "tokenizer_sha256": self.tokenizer.digest,
            "pairs": len(self.samples),
        }

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint after `step` steps keeps of the data: digests, and the pairs that wait."""
        waiting = {"waiting": asdict(self.sampler.state(step))} if isinstance(self.sampler, DistinctImages) else {}
        return {"samples_seen": step * self.sampler.size, **self.lineage, **waiting}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was."""
        if isinstance(self.sampler, DistinctImages):
            self.sampler.resume(step, Waiting(**state["waiting"]))


def prepared(config: TrainConfig, ranks: Ranks, *, say: Callable[[str], None]) -> TrainingData:
    """Index the pairs and train the tokenizer, or open what an earlier command has made of both.

    Raises:
        UsageError: a run folder is not finished, fewer pairs are there than are asked for, or none are left.
        UnreadableError: shards are not as their manifests say.
    """
    return ranks.first_then_others(lambda: _opened(config, say))


def runs_of(config: TrainConfig, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """The run folders that are trained on, that of packed tars and tables among them."""
    chosen = config.data
    plain = chosen.tars or chosen.tables
    return [*chosen.runs, *([packed.pack(training_folder.path(config, "packed"), chosen, say)] if plain else [])]


def samples_of(config: TrainConfig, say: Callable[[str], None] = lambda _: None) -> Samples:
    """The pairs of the settings, with their index in the run's folder; of one process, where it is not there yet."""
    chosen = config.data
    return Samples.open(
        training_folder.path(config, "index"), runs_of(config, say), held_out=chosen.held_out, pairs=chosen.pairs
    )


def _opened(config: TrainConfig, say: Callable[[str], None]) -> TrainingData:
    chosen, samples = config.data, samples_of(config, say)
    is_sequential = chosen.sampling == "sequential"
    order = Order(samples.sources, chosen.source_weights, config.run.seed, sequential=is_sequential)
    size = config.loop.global_batch
    if size > order.epoch_draws:
        raise UsageError(
            f"[loop] global_batch = {size:,}, and {order.epoch_draws:,} pairs to train on: one would be its own "
            "negative; give fewer"
        )
    return TrainingData(samples, _sampler(config, order, samples), _tokenizer(config, samples, say))


def _sampler(config: TrainConfig, order: Order, samples: Samples) -> GlobalBatches:
    size = config.loop.global_batch
    if config.data.same_image_once_a_batch:
        return DistinctImages(order, size, samples.images_of)
    return OneSource(order, size) if config.data.sampling == "one_source" else Sampler(order, size)


def _tokenizer(config: TrainConfig, samples: Samples, say: Callable[[str], None]) -> CaptionTokenizer:
    """That of the run, made where it is not there yet."""
    place, chosen = training_folder.path(config, "tokenizer.json"), config.tokenizer
    if storage.exists(place):
        return tokenizer.read(place, tokens_at_most=chosen.tokens_at_most)
    if chosen.file:
        made = tokenizer.read(chosen.file, tokens_at_most=chosen.tokens_at_most)
    else:
        say(f"training a tokenizer on the captions of {len(samples):,} pairs")
        made = tokenizer.train(lambda: samples.captions(chosen.captions_at_most), chosen)
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    made.write(place)
    return made
