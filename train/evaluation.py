"""Evaluates a training run while it trains, and its checkpoints afterwards, by two functions of the model."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import assert_never

from torch import Tensor

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval import image_sets as sets
from altalign.eval import results
from altalign.eval.image_sets import CaptionedImage
from altalign.eval.retrieval import retrieval
from altalign.train import checkpoints, training_folder
from altalign.train.data import augment, tokenizer
from altalign.train.data.batches import padded
from altalign.train.data.index import Runs
from altalign.train.data.samples import Samples
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.data.training_data import samples_of
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.ranks import Ranks, joined
from altalign.train.settings import RetrievalSettings, TrainConfig
from altalign.train.step.learner import autocast, model_of

Metrics = dict[str, dict[str, float]]


class Encoders:
    """encode_image and encode_text of a model in evaluation mode; ranks share the work, and all get the result."""

    def __init__(self, config: TrainConfig, model: DualEncoder, tokenizer: CaptionTokenizer, ranks: Ranks) -> None:
        self._model, self._tokenizer, self._ranks = model, tokenizer, ranks
        self._autocast = autocast(config, ranks.device)
        chosen = config.evaluation
        sizes = {
            "resize_px": chosen.resize_px or config.data.resize_px,
            "crop_px": chosen.crop_px or config.data.crop_px,
        }
        self.decode: Callable[[bytes], Tensor] = partial(augment.evaluation_pixels, **sizes)

    def encode_image(self, images: Tensor) -> Tensor:
        """Embeddings (n, d) of pixels (n, 3, h, w)."""
        return self._shared(len(images), lambda part: self._model.encode_image(images[part].to(self._ranks.device)))

    def encode_text(self, captions: list[str]) -> Tensor:
        """Embeddings (n, d) of n captions."""

        def encoded(part: slice) -> Tensor:
            tokens, mask = padded(self._tokenizer.encode(captions[part]), self._tokenizer.tokens_at_most)
            return self._model.encode_text(tokens.to(self._ranks.device), mask.to(self._ranks.device))

        return self._shared(len(captions), encoded)

    def _shared(self, number: int, encoded: Callable[[slice], Tensor]) -> Tensor:
        """The embeddings of all inputs. Ranks compute equally many; the last ranks overlap."""
        each = -(-number // self._ranks.ranks)
        first = min(self._ranks.rank * each, number - each)
        with self._autocast():
            own = encoded(slice(first, first + each))
        if self._ranks.ranks == 1:
            return own
        parts = self._ranks.gathered(own)
        starts = [min(rank * each, number - each) for rank in range(self._ranks.ranks)]
        whole = own.new_empty(number, own.shape[1])
        for start, part in zip(starts, parts, strict=True):
            whole[start : start + each] = part
        return whole


class Evaluation:
    """The sets of the settings, listed once, and what a model makes of them."""

    def __init__(
        self,
        config: TrainConfig,
        model: DualEncoder,
        tokenizer: CaptionTokenizer,
        samples: Samples | None,
        ranks: Ranks,
    ) -> None:
        self._config, self._model, self._is_first = config, model, ranks.is_first
        self._encoders = Encoders(config, model, tokenizer, ranks)
        self._sets = [(chosen, _set(chosen, samples)) for chosen in config.evaluation.retrieval]

    def of_model(self) -> Metrics:
        """Metrics of the model as it is now. A collective: all ranks call it."""
        was_training = self._model.training
        self._model.eval()
        try:
            return {f"retrieval/{chosen.name}": self._searched(chosen, images) for chosen, images in self._sets}
        finally:
            self._model.train(was_training)

    def _searched(self, of: RetrievalSettings, images: Iterable[CaptionedImage]) -> dict[str, float]:
        encoders, chosen = self._encoders, self._config
        found = retrieval(
            sets.with_captions(images, at_most=of.captions_at_most, repeated=of.repeated_captions),
            decode=encoders.decode,
            encode_image=encoders.encode_image,
            encode_text=encoders.encode_text,
            batch=chosen.evaluation.batch,
            threads=max(1, chosen.data.workers),
            shared_captions=of.shared_captions,
        )
        if found.undecodable and self._is_first:
            first, *more = map(terminal.shown, found.undecodable)
            lost = first + (f" and {len(more):,} more" if more else "")
            terminal.stderr().print(
                f"{terminal.shown(of.name)}: cannot be decoded, left out: {lost}", style="yellow", soft_wrap=True
            )
        return found.metrics


def _set(chosen: RetrievalSettings, samples: Samples | None) -> Iterable[CaptionedImage]:
    match chosen.kind:
        case "held_out":
            assert samples is not None
            if not samples.facts["held_out_pairs"]:
                share = samples.facts["asked"]["held_out"]
                raise UsageError(
                    f"[[evaluation.retrieval]] {chosen.name!r}: [data] held_out = {share:g} keeps no image of these "
                    "runs; give a larger share"
                )
            return _HeldOut(samples, chosen.images_at_most)
        case "run":
            return sets.run_set(chosen.paths, images_at_most=chosen.images_at_most)
        case "webdataset":
            return sets.webdataset_set(chosen.paths, images_at_most=chosen.images_at_most)
        case "parquet":
            columns = {"image_column": chosen.image_column, "caption_column": chosen.caption_column}
            return sets.parquet_set(chosen.paths, **columns, images_at_most=chosen.images_at_most)
    assert_never(chosen.kind)


class _HeldOut:
    """The pairs that training never sees, to be gone through any number of times."""

    def __init__(self, samples: Samples, images_at_most: int) -> None:
        self._samples, self._images_at_most = samples, images_at_most

    def __iter__(self):
        for image in self._samples.held_out(self._images_at_most):
            yield CaptionedImage(image.image, image.captions, image.image_id)


def evaluate(config: TrainConfig, *, step: int | None = None) -> int:
    """`altalign eval`: metrics of a checkpoint (default: the newest), to RUN/eval/step-NNNNNNN and as a table.

    Raises:
        UsageError: no set is named, the run has no such checkpoint, or other settings than these.
        DamagedError: the checkpoint is not as it was written.
    """
    if not config.evaluation.retrieval:
        raise UsageError("no [[evaluation.retrieval]] in the settings: there is nothing to evaluate on; add one")
    training_folder.check_trained(config)
    with joined(config.loop.device) as ranks:
        place = ranks.told(_checkpoint(config, step) if ranks.is_first else None)
        # else the shards need not be here
        holds_out = any(chosen.kind == "held_out" for chosen in config.evaluation.retrieval)
        manifests = {"manifests": Runs.open(config.data.runs).manifests} if holds_out else {}
        # before an index is made of others
        training_folder.check_checkpoint(config, place, checkpoints.state_of(place), manifests)
        words = tokenizer.read(str(place / "tokenizer.json"), tokens_at_most=config.tokenizer.tokens_at_most)
        model = model_of(config, vocabulary=words.vocabulary)
        checkpoints.load_model(place, model)
        samples = ranks.first_then_others(lambda: samples_of(config)) if holds_out else None
        metrics = Evaluation(config, model.to(ranks.device), words, samples, ranks).of_model()
        if ranks.is_first:
            report(config, checkpoints.state_of(place)["step"], metrics)
    return 0


def _checkpoint(config: TrainConfig, step: int | None) -> Path:
    """The one after `step` steps (None: the newest), checked."""
    place = checkpoints.newest(config.run.folder) if step is None else checkpoints.folder_of(config.run.folder, step)
    if place is None or not (place / "manifest.json").is_file():
        there = ", ".join(map(str, checkpoints.finished(config.run.folder))) or "none"
        raise UsageError(
            f"{config.run.folder}: no checkpoint{'' if step is None else f' of step {step}'} (there: {there}); train "
            "first, or give another step"
        )
    if step is not None:
        checkpoints.check(place)
    return place


def report(config: TrainConfig, step: int, metrics: Metrics) -> None:
    """Write the checkpoint's metrics, beside those of its other sets that are there, and print the table."""
    place = training_folder.path(config, "eval", f"step-{step:07}", "metrics.json")
    results.write_metrics(place, {**storage.read_json(place), **metrics, "checkpoint": {"step": step}})
    out = terminal.stdout()
    out.print(results.retrieval_table(metrics))
    out.print(f"step {step:,}; {terminal.shown(place)}", soft_wrap=True)
