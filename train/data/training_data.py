"""What a run is trained on: its pairs, their order, and the tokenizer of their captions.

Rank 0 makes it, and all open it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from altalign import storage
from altalign.errors import UsageError
from altalign.train.data import by_key, changed_runs, packed, parts, tokenizer
from altalign.train.data import noise_estimates as estimates
from altalign.train.data.class_numbers import ClassNumbers
from altalign.train.data.index import KEPT
from altalign.train.data.nlip_captions import Prompts, Swapped
from altalign.train.data.noise_estimates import Estimates
from altalign.train.data.order import DistinctImages, GlobalBatches, Waiting, global_batches
from altalign.train.data.pair_selection import WORDS, Asked
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.run import training_folder, weights
from altalign.train.run.ranks import Ranks
from altalign.train.settings.data import DataSettings
from altalign.train.settings.training import OF_RUN, TrainConfig

CAPTIONS = "captions/captions.parquet"  # in the folder of the training that wrote them
_MAKES_CAPTIONS, _MAKES_CONCEPTS = "altalign nlip caption RUN", "altalign nlip concepts"


@dataclass(frozen=True)
class TrainingData:
    """Pairs, global batches of them by number, the tokenizer, and how noisy each pair is, where that is known."""

    samples: Samples
    sampler: GlobalBatches
    tokenizer: CaptionTokenizer | ClassNumbers
    estimates: Estimates | None = None
    swapped: Swapped | None = None
    prompts: Prompts | None = None

    @property
    def lineage(self) -> dict[str, Any]:
        """Digests that tie weights to their training data."""
        clusters = {folder: digest for folder, (_, digest) in self.samples.runs.clusters.items()}
        return {
            "manifests": dict(self.samples.runs.manifests),
            **({"clusters": clusters} if clusters else {}),
            **({"scores": dict(scores)} if (scores := self.samples.runs.chosen.digests) else {}),
            **({"noise_sha256": self.estimates.digest} if self.estimates is not None else {}),
            **(
                {
                    "captions_sha256": self.swapped.captions.digest,
                    "captioned_manifests": dict(self.swapped.learned_from),
                }
                if self.swapped is not None
                else {}
            ),
            **(
                {"concepts_sha256": self.prompts.concepts.digest}
                if self.prompts is not None and self.prompts.concepts is not None
                else {}
            ),
            "tokenizer_sha256": self.tokenizer.digest,
            "pairs": len(self.samples),
        }

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint after `step` steps keeps of the data: digests, and the pairs that wait."""
        waiting = {"waiting": asdict(self.sampler.state(step))} if isinstance(self.sampler, DistinctImages) else {}
        return {"samples_seen": step * self.sampler.size, **self.lineage, **waiting}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint; of other pairs, none waits."""
        if not isinstance(self.sampler, DistinctImages):
            return
        if state["manifests"] == self.samples.runs.manifests:
            self.sampler.resume(step, Waiting(**state["waiting"]))
        else:
            self.sampler.begin(step)


def check_there(config: TrainConfig) -> None:
    """Refuse settings that name what nobody made, before any work: weights, estimates, captions, concepts.

    Raises:
        UsageError: saying what makes it.
    """
    for section in ("image_tower", "text_tower", "captioner"):
        weights.check_there(getattr(config, section).weights, f"[{section}] weights")
    if config.noise.estimates:
        estimates.check_there(config.noise.estimates)
    if config.noise.captions:
        by_key.check_there(captions_of(config), setting="[noise] captions", makes=_MAKES_CAPTIONS)
    if config.captioner.weight and config.captioner.concepts:
        by_key.check_there(config.captioner.concepts, setting="[captioner] concepts", makes=_MAKES_CONCEPTS)


def captions_of(config: TrainConfig) -> str:
    """The file of written captions that the settings name, as a file or a run."""
    given = config.noise.captions
    return given if given.endswith(".parquet") else storage.join(given.removeprefix(OF_RUN), CAPTIONS)


def prepared(
    config: TrainConfig, ranks: Ranks, *, say: Callable[[str], None], data_changed: bool = False
) -> TrainingData:
    """Index the pairs and train the tokenizer, or open what an earlier command has made of both.

    With `data_changed` the training goes on though a run that it learns from is not as it was.

    Raises:
        UsageError: a run folder is not finished or has changed, fewer pairs are there than are asked for, or none are
            left.
        UnreadableError: shards are not as their manifests say.
    """
    return ranks.first_then_others(lambda: _opened(config, say, data_changed=data_changed))


def runs_of(config: TrainConfig, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """The run folders that are trained on, that of packed tars and tables among them."""
    chosen = config.data
    if config.classification.train:
        return [packed.pack_classes(training_folder.path(config, "packed"), config, say)]
    return [*chosen.runs, *([packed.pack(training_folder.path(config, "packed"), chosen, say)] if chosen.files else [])]


def samples_of(
    config: TrainConfig, say: Callable[[str], None] = lambda _: None, *, data_changed: bool = False
) -> Samples:
    """The pairs of the settings, with their index in the run's folder; of one process, where it is not there yet.

    Raises:
        UsageError: the folder's training has learned from other pairs, and `data_changed` does not allow it.
    """
    chosen, folder = config.data, training_folder.local(config, "index")
    runs = Runs.open(runs_of(config, say), clusters=chosen.sources == "clusters", asked=asked_of(chosen))
    changed_runs.settle(config, runs.manifests, is_allowed=data_changed, say=say)
    return Samples.of(folder, runs, held_out=chosen.held_out, pairs=chosen.pairs)


def asked_of(chosen: DataSettings) -> Asked:
    """What the settings ask of pairs."""
    return Asked(chosen.where, chosen.weight_by, chosen.nulls)


def chosen_said(samples: Samples) -> str:
    """How many pairs are left of which something was asked, and why the others are not."""
    found: dict[str, int] = samples.facts.get("chosen", {})
    gone = ", ".join(f"{found[why]:,} {words}" for why, words in WORDS.items() if found.get(why))
    return f"{found.get(KEPT, 0):,} of {sum(found.values()):,} pairs are left; left out are {gone or 'none'}"


def _opened(config: TrainConfig, say: Callable[[str], None], *, data_changed: bool) -> TrainingData:
    samples = samples_of(config, say, data_changed=data_changed)
    if "chosen" in samples.facts:
        say(chosen_said(samples))
    # before a tokenizer is trained: settings that cannot be are refused
    sampler = global_batches(config, samples.sources, samples.weights, samples.images_of)
    known = _estimates(config, samples)
    swapped = _swapped(config, known, samples)
    return TrainingData(samples, sampler, _tokenizer(config, samples, say), known, swapped, prompts_of(config))


def _swapped(config: TrainConfig, known: Estimates | None, samples: Samples) -> Swapped | None:
    """The captions of a model, where the settings name them.

    Raises:
        UsageError: a pair has none.
    """
    if not config.noise.captions:
        return None
    assert known is not None  # the settings have it
    path, place = captions_of(config), training_folder.local(config, "index", "captions.arrow")
    found = by_key.build(path, place, ["caption"], setting="[noise] captions", makes=_MAKES_CAPTIONS)
    if missing := found.missing(estimates.keys_of(samples.pairs(np.arange(len(samples), dtype=np.int64)))):
        raise UsageError(
            f"[noise] captions: {path}: none of {missing:,} of the {len(samples):,} pairs; write it for the same [data]"
        )
    return Swapped(found, known, storage.read_json(parts.mark_of(path)).get("learned_from", {}))


def prompts_of(config: TrainConfig) -> Prompts | None:
    """What a captioner reads, where there is one."""
    chosen = config.captioner
    if not chosen.weight:
        return None
    place, concepts = training_folder.local(config, "index", "concepts.arrow"), None
    if chosen.concepts:
        setting = "[captioner] concepts"
        concepts = by_key.build(chosen.concepts, place, ["concepts"], setting=setting, makes=_MAKES_CONCEPTS)
    return Prompts(chosen, concepts)


def _estimates(config: TrainConfig, samples: Samples) -> Estimates | None:
    """How noisy the pairs are, of the settings.

    Raises:
        UsageError: a pair has no estimate.
    """
    given = config.noise.estimates
    if not given:
        return None
    found = estimates.read(given)
    if missing := found.missing(estimates.keys_of(samples.pairs(np.arange(len(samples), dtype=np.int64)))):
        raise UsageError(
            f"[noise] estimates: {estimates.path_of(given)}: none of {missing:,} of the {len(samples):,} pairs; "
            "measure a training run of the same [data]"
        )
    return found


def _tokenizer(config: TrainConfig, samples: Samples, say: Callable[[str], None]) -> CaptionTokenizer | ClassNumbers:
    """The tokenizer of the run, trained if there is none yet; or its classes."""
    place, chosen = training_folder.path(config, "tokenizer.json"), config.tokenizer
    if config.classification.train:
        numbers = ClassNumbers.read(training_folder.path(config, "packed", packed.CLASSES))
        numbers.write(place)
        return numbers
    if storage.exists(place):
        return tokenizer.read(place, tokens_at_most=chosen.tokens_at_most)
    made = tokenizer.given(chosen, config.text_tower.weights)
    if made is not None and made.is_of_bytes and config.text_tower.architecture != "bart":
        raise UsageError(
            f"[tokenizer] pieces of bytes, which are BART's, and [text_tower] architecture = "
            f'"{config.text_tower.architecture}"; give "bart", or another tokenizer'
        )
    if made is None:
        say(f"training a tokenizer on the captions of {len(samples):,} pairs")
        made = tokenizer.train(lambda: samples.captions(tokenizer.CAPTIONS_AT_MOST), chosen)
    made.write(place)
    return made
