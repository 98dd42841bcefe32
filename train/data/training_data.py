"""What a run is trained on: its pairs, their order, and the tokenizer of their captions.

Rank 0 makes it, and all open it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data import by_key, noise_estimates, packed, steps_of_pair, tokenizer
from altalign.train.data.by_key import ByKey
from altalign.train.data.captions import Prompts, Swapped
from altalign.train.data.index import KEPT
from altalign.train.data.order import DistinctImages, Sampler, Waiting, global_batches
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.run import training_folder, weights
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig

CAPTIONS = "captions/captions.parquet"  # in the folder of the training that wrote them

_Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainingData:
    """Pairs, global batches of them by number, the tokenizer, and how noisy each pair is, where that is known."""

    samples: Samples
    sampler: Sampler
    tokenizer: CaptionTokenizer | ClassNumbers
    estimates: ByKey | None = None  # with a column `eps`
    swapped: Swapped | None = None
    prompts: Prompts | None = None

    @property
    def lineage(self) -> dict[str, Any]:
        """Digests that tie weights to their training data."""
        runs, swapped, concepts = self.samples.runs, self.swapped, self.prompts and self.prompts.concepts
        facts: dict[str, Any] = {
            "manifests": runs.manifests,
            "clusters": {folder: digest for folder, (_, digest) in runs.clusters.items()},
            "scores": runs.scores,
            "noise_sha256": self.estimates and self.estimates.digest,
            "captions_sha256": swapped and swapped.captions.digest,
            "captioned_manifests": swapped and swapped.learned_from,
            "concepts_sha256": concepts and concepts.digest,
            "tokenizer_sha256": self.tokenizer.digest,
            "pairs": len(self.samples),
        }
        return {name: value for name, value in facts.items() if value}

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint after `step` steps keeps of the data: digests, and the pairs that wait."""
        sampler = self.sampler
        waiting = {"waiting": sampler.state(step)._asdict()} if isinstance(sampler, DistinctImages) else {}
        return {"samples_seen": step * sampler.size, **self.lineage, **waiting}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint; of other pairs, none waits."""
        if isinstance(self.sampler, DistinctImages):
            is_same = state["manifests"] == self.samples.runs.manifests
            self.sampler.resume(step, Waiting(**state["waiting"]) if is_same else None)


def check_there(config: TrainConfig) -> None:
    """Raise UsageError, before any work, for settings that name weights, estimates or tables that nobody made."""
    noise, captioner = config.noise, config.captioner
    for section in ("image_tower", "text_tower", "captioner"):
        weights.check_there(getattr(config, section).weights, f"[{section}] weights")
    if noise.estimates:
        by_key.check_there(by_key.path_of(noise.estimates, noise_estimates.FILE), "[noise] estimates")
    if noise.captions:
        by_key.check_there(by_key.path_of(noise.captions, CAPTIONS), "[noise] captions")
    if captioner.weight and captioner.concepts:
        by_key.check_there(captioner.concepts, "[captioner] concepts")


def prepared(config: TrainConfig, ranks: Ranks, *, say: _Say, data_changed: bool = False) -> TrainingData:
    """Index the pairs and train the tokenizer, or open what an earlier command has made of both. Raises as `Runs`.

    With `data_changed` the training goes on though a run that it learns from is not as it was.
    """

    def opened() -> TrainingData:
        samples, noise = samples_of(config, say, data_changed=data_changed), config.noise
        if counts := samples.facts.get("chosen"):
            kept = counts.get(KEPT, 0)
            say(f"{kept:,} of {sum(counts.values()):,} pairs are left by [data] where and weight_by")
        # before a tokenizer is trained: settings that cannot be are refused
        sampler, estimates, swapped = global_batches(config, samples), None, None
        if noise.estimates:
            path = by_key.path_of(noise.estimates, noise_estimates.FILE)
            estimates = by_key.opened(path, _place(config, "noise"), "eps", "[noise] estimates", samples)
            if noise.captions:
                path = by_key.path_of(noise.captions, CAPTIONS)
                written = by_key.opened(path, _place(config, "captions"), "caption", "[noise] captions", samples)
                learned_from = storage.read_json(by_key.mark_of(path)).get("learned_from", {})
                swapped = Swapped(written, estimates, learned_from)
        return TrainingData(samples, sampler, _tokenizer(config, samples, say), estimates, swapped, prompts_of(config))

    return ranks.first_then_others(opened)


def runs_of(config: TrainConfig, say: _Say = lambda _: None) -> list[str]:
    """The run folders that are trained on, that of packed tars and tables among them."""
    chosen, place = config.data, training_folder.path(config, "packed")
    if config.classification.train:
        return [packed.pack_classes(place, config, say)]
    return [*chosen.runs, *([packed.pack(place, chosen, say)] if chosen.files else [])]


def samples_of(config: TrainConfig, say: _Say = lambda _: None, *, data_changed: bool = False) -> Samples:
    """The pairs of the settings, with their index in the run's folder; of one process, where it is not made yet.

    Raises UsageError: the training has learned from other pairs, and `data_changed` does not allow it.
    """
    runs = Runs(runs_of(config, say), config.data)
    steps_of_pair.settle(config, runs.manifests, is_allowed=data_changed, say=say)
    folder = training_folder.local(config, "index")
    return Samples.open(folder, runs, held_out=config.data.held_out, pairs=config.data.pairs)


def _place(config: TrainConfig, name: str) -> str:
    return training_folder.local(config, "index", f"{name}.arrow")


def prompts_of(config: TrainConfig) -> Prompts | None:
    """What a captioner reads, where there is one."""
    chosen, concepts = config.captioner, None
    if chosen.weight and chosen.concepts:
        concepts = by_key.opened(chosen.concepts, _place(config, "concepts"), "concepts", "[captioner] concepts")
    return Prompts(chosen, concepts) if chosen.weight else None


def _tokenizer(config: TrainConfig, samples: Samples, say: _Say) -> CaptionTokenizer | ClassNumbers:
    """The tokenizer of the run, trained if there is none yet; or its classes."""
    place, chosen, tower = training_folder.path(config, "tokenizer.json"), config.tokenizer, config.text_tower
    if config.classification.train:
        numbers = ClassNumbers.read(training_folder.path(config, "packed", packed.CLASSES))
        numbers.write(place)
        return numbers
    if storage.exists(place):
        return tokenizer.read(place, tokens_at_most=chosen.tokens_at_most)
    made = tokenizer.given(chosen, tower.weights)
    if made is not None and (owner := tokenizer.OWNERS.get(made.special)) and tower.architecture != owner.lower():
        pieces = "pieces of bytes" if made.is_of_bytes else "pieces of Unigram"
        raise UsageError(
            f"[tokenizer] {pieces}, which are {owner}'s, and [text_tower] architecture = "
            f'"{tower.architecture}"; give "{owner.lower()}", or another tokenizer'
        )
    if made is None:
        say(f"training a tokenizer on the captions of {len(samples):,} pairs")
        made = tokenizer.train(lambda: samples.captions(tokenizer.CAPTIONS_AT_MOST), chosen)
    made.write(place)
    return made
