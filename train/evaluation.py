"""Evaluates a training run while it trains, and its checkpoints afterwards, by two functions of the model."""

import re
from collections.abc import Iterator, Sequence

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval import results
from altalign.eval.encoded import ENCODED_TOGETHER, Encoder, Features
from altalign.eval.image_sources import UNDECODABLE, Place
from altalign.eval.retrieval import retrieval
from altalign.eval.sets import ImageSet, Listed, captioned
from altalign.models import torch_models
from altalign.train.data import tokenizer
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples
from altalign.train.data.training_data import runs_of, samples_of
from altalign.train.exchange.encoders import Encoders, without_weights
from altalign.train.run import checkpoints, training_folder
from altalign.train.run.ranks import joined
from altalign.train.settings.data import RetrievalSet
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import model_of

Metrics = dict[str, dict[str, float]]


class Evaluation:
    """The sets of the settings, listed once, and what a model makes of them."""

    def __init__(
        self,
        config: TrainConfig,
        encoder: Encoder,
        samples: Samples | None,
        *,
        is_first: bool,
    ) -> None:
        workers = max(1, config.data.workers)
        self._features = Features(encoder, batch=ENCODED_TOGETHER, threads=workers)
        self._is_first = is_first
        held_out = (lambda at_most: held_out_set(samples, at_most)) if samples is not None else None
        self._sets = [(chosen, captioned(chosen, held_out)) for chosen in config.evaluation.retrieval]

    def of_model(self) -> Metrics:
        """Metrics of the model as it is now. A collective: all ranks call it."""
        return {f"retrieval/{chosen.name}": self._searched(chosen, images) for chosen, images in self._sets}

    def _searched(self, of: RetrievalSet, images: ImageSet) -> dict[str, float]:
        found = retrieval(images, self._features, shared_captions=of.shared_captions)
        if self._is_first and (undecodable := found.left_out.get(UNDECODABLE)):
            first, *more = map(terminal.shown, undecodable)
            lost = first + (f" and {len(more):,} more" if more else "")
            terminal.stderr().print(
                f"{terminal.shown(of.name)}: cannot be decoded, left out: {lost}", style="yellow", soft_wrap=True
            )
        return {**found.metrics, **found.facts}


def held_out_set(samples: Samples, images_at_most: int) -> ImageSet:
    """The pairs that training never sees.

    Raises:
        UsageError: none is held out.
    """
    if not samples.facts["held_out_pairs"]:
        share = samples.facts["asked"]["held_out"]
        raise UsageError(f"[data] held_out = {share:g} keeps no image of these runs; give a larger share")
    listed = [
        Listed(one.image_id, Place("", number, name=one.image_id), one.captions)
        for number, one in enumerate(samples.held_out(images_at_most))
    ]

    def read(places: Sequence[Place]) -> Iterator[bytes]:
        wanted = {place.offset for place in places}
        return (one.image for number, one in enumerate(samples.held_out(images_at_most)) if number in wanted)

    return ImageSet(listed, {}, read)


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
        chosen = checkpoints.chosen(config.run.folder, step, goes_on=False) if ranks.is_first else None
        place = checkpoints.on_all_machines(config.run.folder, chosen, ranks, goes_on=False)
        assert place is not None  # or the first rank has refused
        # else the shards need not be here
        holds_out = any(of.held_out for of in config.evaluation.retrieval)
        runs = Runs.open(ranks.first_then_others(lambda: runs_of(config))) if holds_out else None
        manifests = {"manifests": runs.manifests} if runs else {}
        # before an index is made of others
        training_folder.check_checkpoint(config, place, checkpoints.state_of(place), manifests)
        words = tokenizer.read(str(place / "tokenizer.json"), tokens_at_most=config.tokenizer.tokens_at_most)
        model = model_of(without_weights(config), vocabulary=words.vocabulary)
        checkpoints.load_model(place, model)
        samples = ranks.first_then_others(lambda: samples_of(config)) if holds_out else None
        encoders = Encoders(config, model.to(ranks.device), words, ranks)
        metrics = Evaluation(config, encoders.encoder, samples, is_first=ranks.is_first).of_model()
        if ranks.is_first:
            report(config, checkpoints.state_of(place)["step"], metrics)
    return 0


def evaluate_other(config: TrainConfig, model: str) -> int:
    """`altalign eval CONFIG --model`: metrics of somebody else's model, to RUN/eval/NAME and as a table.

    Raises:
        UsageError: no set is named, or the model cannot be opened.
    """
    if not config.evaluation.retrieval:
        raise UsageError("no [[evaluation.retrieval]] in the settings: there is nothing to evaluate on; add one")
    holds_out = any(chosen.held_out for chosen in config.evaluation.retrieval)
    encoder = torch_models.opened(model, device=config.loop.device)
    samples = samples_of(config) if holds_out else None
    metrics = Evaluation(config, encoder, samples, is_first=True).of_model()
    _report(training_folder.path(config, "eval", folder_of(model), "metrics.json"), metrics, terminal.shown(model))
    return 0


def folder_of(model: str) -> str:
    """The name of the folder that has the metrics of somebody else's model."""
    return re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"


def report(config: TrainConfig, step: int, metrics: Metrics) -> None:
    """Write a checkpoint's metrics, and print the table."""
    place = training_folder.path(config, "eval", f"step-{step:07}", "metrics.json")
    _report(place, {**metrics, "checkpoint": {"step": step}}, f"step {step:,}")


def _report(place: str, metrics: Metrics, of: str) -> None:
    """Write metrics beside those of other sets that are there, and print the table."""
    results.write_metrics(place, {**storage.read_json(place), **metrics})
    out = terminal.stdout()
    if any(name.startswith("retrieval/") for name in metrics):
        out.print(results.retrieval_table(metrics))
    for name, values in metrics.items():
        if name.startswith("classification/"):
            out.print(
                f"{name}: top-1 {values['top1']:.2f} %, top-5 {values['top5']:.2f} %, mean per class "
                f"{values['mean_per_class']:.2f} %, of {values['images']:,.0f} images"
            )
    out.print(f"{of}; {terminal.shown(place)}", soft_wrap=True)
