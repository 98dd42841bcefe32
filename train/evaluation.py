"""Evaluates a training while it trains, and its checkpoints afterwards: on captioned images, or images with classes."""

import re
from pathlib import Path

import torch
from torch import Tensor

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval import results
from altalign.eval.classification import classified
from altalign.eval.encoded import ENCODED_TOGETHER, Encoder, Features
from altalign.eval.evaluation import results_of
from altalign.eval.image_sources import UNDECODABLE
from altalign.eval.retrieval import retrieval
from altalign.eval.sets import captioned, labelled_set
from altalign.eval.settings import TASKS, EvalSets
from altalign.models import torch_models
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples
from altalign.train.data.training_data import runs_of, samples_of
from altalign.train.exchange import encoders
from altalign.train.model.dual_encoder import Classifier
from altalign.train.run import checkpoints, training_folder
from altalign.train.run.ranks import Ranks, joined
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import autocast

Metrics = dict[str, dict[str, float]]


class Evaluation:
    """The sets of the settings, listed once, and what a model makes of them."""

    def __init__(self, config: TrainConfig, encoder: Encoder, samples: Samples | None, *, is_first: bool) -> None:
        self._features = Features(encoder, batch=ENCODED_TOGETHER, threads=max(1, config.data.workers))
        self._is_first = is_first
        held_out = samples.held_out if samples is not None else None
        self._sets = [(chosen.name, captioned(chosen, held_out)) for chosen in config.evaluation.retrieval]
        self._others, self._held_out = sets_of(config), held_out

    def of_model(self) -> Metrics:
        """Metrics of the model as it is now. A collective: all ranks call it."""
        metrics: Metrics = {}
        for name, images in self._sets:
            result = retrieval(images, self._features)
            metrics[f"retrieval/{name}"] = {**result.metrics, **result.facts}
            if self._is_first and (undecodable := result.left_out.get(UNDECODABLE)):
                lost = terminal.shown(undecodable[0])
                lost += f" and {len(undecodable) - 1:,} more" if len(undecodable) > 1 else ""
                text = f"{terminal.shown(name)}: cannot be decoded, left out: {lost}"
                terminal.stderr().print(text, style="yellow", soft_wrap=True)
        if self._others:
            measured, missing = results_of(self._others, self._features, self._held_out)
            metrics |= {name: {**result.metrics, **result.facts} for name, result in measured.items()}
            for name, why in missing.items() if self._is_first else ():
                terminal.stderr().print(terminal.shown(f"{name}: left out: {why}"), style="yellow", soft_wrap=True)
        return metrics


def sets_of(config: TrainConfig) -> EvalSets | None:
    """The sets of `[evaluation] sets`. Raises UsageError: the file is none, or has a name of the settings' own sets."""
    if not config.evaluation.sets:
        return None
    sets, own = EvalSets.load(config.evaluation.sets), {each.name for each in config.evaluation.retrieval}
    if twice := next((each.name for each in sets.set if each.task == "retrieval" and each.name in own), ""):
        where = f"[evaluation] sets = {config.evaluation.sets!r}"
        raise UsageError(f"{where}: retrieval/{twice} is in [[evaluation.retrieval]] too; rename one")
    return sets


class ClassEvaluation:
    """The images of `[classification] test`, listed once, and what a classifier makes of them."""

    def __init__(self, config: TrainConfig, model: Classifier, numbers: ClassNumbers, ranks: Ranks) -> None:
        chosen, arithmetic = config.classification, autocast(config.loop.precision, ranks.device)
        self._set = labelled_set(
            chosen.test,
            image_column=config.data.image_column,
            label_column=chosen.label_column,
            classes=numbers.classes,
            needs_names=False,
        )

        def logits(pixels: Tensor) -> Tensor:
            number = len(pixels)
            return encoders.by_ranks(ranks, model, arithmetic, number, lambda of: model(pixels[of].to(ranks.device)))

        def no_text(texts: list[str]) -> Tensor:
            raise NotImplementedError(f"a classifier encodes no text, and {len(texts)} were given")

        decode, sharing = encoders.decoder_of(config), encoders.sharing_of(ranks, encoders.sizes_of(config)[1])
        encoder = Encoder(decode, logits, no_text, sharing=sharing)
        self._features = Features(encoder, batch=ENCODED_TOGETHER, threads=max(1, config.data.workers))
        self._classes = numbers.vocabulary

    def of_model(self) -> Metrics:
        """Metrics of the model as it is now. A collective: all ranks call it."""
        encoded = self._features.of_images(self._set.images)
        classes = torch.eye(self._classes, device=encoded.embeddings.device)
        facts = {"undecodable": len(encoded.undecodable)}
        result = classified(self._set, encoded, encoded.embeddings, classes, facts)
        return {"classification/test": {**result.metrics, **result.facts}}


def evaluate(config: TrainConfig, *, step: int | None = None) -> int:
    """`altalign eval`: metrics of a checkpoint (default: the newest), to RUN/eval/step-NNNNNNN and as a table.

    Raises UsageError: no set is named, the run has no such checkpoint, or other settings than these; DamagedError: the
    checkpoint is not as it was written.
    """
    if not config.classification.train:
        _check_sets(config)
    training_folder.check_trained(config)
    with joined(config.loop.device) as ranks:
        chosen = checkpoints.chosen(config.run.folder, step, goes_on=False) if ranks.is_first else None
        place = checkpoints.on_all_machines(config.run.folder, chosen, ranks, goes_on=False)
        assert place is not None  # or the first rank has refused
        if config.classification.train:
            numbers = ClassNumbers.read(str(place / "tokenizer.json"))
            model = Classifier(encoders.without_weights(config).image_tower, classes=numbers.vocabulary)
            checkpoints.load_model(place, model, averaged=config.evaluation.averaged)
            metrics = ClassEvaluation(config, model.to(ranks.device), numbers, ranks).of_model()
        else:
            metrics = _of_captions(config, place, ranks).of_model()
        if ranks.is_first:
            report(config, metrics, step=checkpoints.state_of(place)["step"])
    return 0


def _of_captions(config: TrainConfig, place: Path, ranks: Ranks) -> Evaluation:
    runs = Runs(ranks.first_then_others(lambda: runs_of(config))) if _holds_out(config) else None
    # before an index is made of others
    lineage = {"manifests": runs.manifests} if runs else {}
    training_folder.check_checkpoint(config, place, checkpoints.state_of(place), lineage)
    trained = encoders.trained_at(place, config)
    samples = ranks.first_then_others(lambda: samples_of(config)) if runs else None
    opened = encoders.Encoders(config, trained.model.to(ranks.device), trained.tokenizer, ranks)
    return Evaluation(config, opened.encoder, samples, is_first=ranks.is_first)


def evaluate_other(config: TrainConfig, model: str) -> int:
    """`altalign eval CONFIG --model`: metrics of somebody else's model, to RUN/eval/NAME and as a table.

    Raises UsageError: no set is named, or the model cannot be opened.
    """
    _check_sets(config)
    encoder = torch_models.opened(model, device=config.loop.device)
    samples = samples_of(config) if _holds_out(config) else None
    report(config, Evaluation(config, encoder, samples, is_first=True).of_model(), model=model)
    return 0


def _check_sets(config: TrainConfig) -> None:
    if not config.evaluation.retrieval and not config.evaluation.sets:
        raise UsageError("no [[evaluation.retrieval]] in the settings: there is nothing to evaluate on; add one")


def _holds_out(config: TrainConfig) -> bool:
    """Whether a set is of the run's own pairs; else the shards need not be here."""
    others = sets_of(config)
    return any(chosen.held_out for chosen in (*config.evaluation.retrieval, *(others.set if others else ())))


def folder_of(model: str) -> str:
    """The name of the folder that has the metrics of somebody else's model."""
    return re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"


def report(config: TrainConfig, metrics: Metrics, *, step: int = 0, model: str = "") -> None:
    """Write metrics of a checkpoint, or of another model, beside those of other sets, and print the tables."""
    folder, name = (folder_of(model), terminal.shown(model)) if model else (f"step-{step:07}", f"step {step:,}")
    place = training_folder.path(config, "eval", folder, "metrics.json")
    known = {} if model else {"checkpoint": {"step": step}}
    results.write_metrics(place, {**storage.read_json(place), **metrics, **known})
    out = terminal.stdout()
    if any(name.startswith("retrieval/") for name in metrics):
        out.print(results.retrieval_table(metrics))
    for each, values in metrics.items():
        if (task := TASKS.get(each.partition("/")[0])) and not each.startswith("retrieval/"):
            numbers = ", ".join(f"{metric} {values[metric]:.2f}" for metric in task.metrics if metric in values)
            out.print(f"{terminal.shown(each)}: {numbers}", soft_wrap=True)
    if values := metrics.get("classification/test"):
        out.print(
            f"classification/test: top-1 {values['top1']:.2f} %, top-5 {values['top5']:.2f} %, mean per class "
            f"{values['mean_per_class']:.2f} %, of {values['images']:,.0f} images"
        )
    out.print(f"{name}; {terminal.shown(place)}", soft_wrap=True)
