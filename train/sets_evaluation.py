"""`altalign eval … --sets FILE`: a model on sets of the user's."""

from dataclasses import replace

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.eval import evaluation, results
from altalign.eval.encoded import ENCODED_TOGETHER, Encoder, Features
from altalign.eval.settings import EvalSets
from altalign.models import torch_models
from altalign.train.data.captions import Prompts
from altalign.train.data.training_data import samples_of
from altalign.train.evaluation import folder_of
from altalign.train.exchange import encoders
from altalign.train.nlip.captions import Captions
from altalign.train.run import checkpoints, training_folder
from altalign.train.settings.training import TrainConfig
from altalign.train.settings.types import Device


def evaluate(
    given: str, sets: EvalSets, *, model: str, step: int | None, out: str, device: Device, overrides: list[str]
) -> int:
    """Measure a model on sets, write the results and print them; gives the exit code, 1 where a set is missing.

    `given` is a training run, or the settings of one with `overrides`; `model` is somebody else's, in its place;
    results go to `out` (empty: the run's folder); `device` is for a model without a run. Raises UsageError: there is no
    such run, model or checkpoint.
    """
    config = None
    if given and storage.kind(given) == "folder":
        place = checkpoints.chosen(given, step, goes_on=False)
        config = TrainConfig.load(place / "config.toml", [*overrides, f"run.folder={given}"])
    elif given:
        config = TrainConfig.load(given, overrides)
        if not model:
            training_folder.check_trained(config)
    runs = list[str]()  # that a run learned from
    if model:
        if not out and config is None:
            raise UsageError("--model without a training run: say where the results go, with --out")
        name, own = model, folder_of(model)
        encoder = torch_models.opened(model, device=config.loop.device if config else device)
    elif config is None:
        raise UsageError("nothing to evaluate; give a training run or its settings, or --model and --out")
    else:
        at, encoder, runs = _of_run(config, step)
        name, own = f"step {at:,}", f"step-{at:07}"
    folder = out or training_folder.path(config, "eval", own)  # type: ignore[arg-type]
    say = terminal.stderr().print
    features = Features(
        encoder,
        batch=ENCODED_TOGETHER,
        threads=max(1, config.data.workers) if config else 1,
        folder=training_folder.path(config, "eval", "features") if config else storage.join(folder, "features"),
    )
    measured = evaluation.evaluate(
        sets,
        features,
        held_out=(lambda images_at_most: samples_of(config).held_out(images_at_most)) if config else None,
        runs=runs,
        say=lambda text: say(terminal.shown(text), soft_wrap=True),
    )
    results.write(folder, measured, model=f"{given}, {name}" if given and not model else name)
    results.show(measured, terminal.stdout(), model=f"{terminal.shown(name)}; {terminal.shown(folder)}")
    return 1 if measured.missing else 0


def _of_run(config: TrainConfig, step: int | None) -> tuple[int, Encoder, list[str]]:
    """The step of a run's checkpoint, its encoder, and the curated runs that it learned from."""
    trained = encoders.trained(config.run.folder, step=step, evaluation=config.evaluation.model_dump(mode="json"))
    opened = encoders.of_trained(trained, config.loop.device)
    encoder = opened.encoder
    if opened.model.captioner is not None:
        encoder = replace(encoder, write=Captions(opened, Prompts(opened.config.captioner, None)).shown)
    captioned = list(checkpoints.state_of(trained.place).get("captioned_manifests", {}))
    if captioned:
        names = ", ".join(map(terminal.shown, captioned))
        terminal.stderr().print(
            f"captions of noisy pairs are of a model of {names}: results on the data set that these are of are not "
            "zero-shot",
            style="yellow",
            soft_wrap=True,
        )
    return trained.step, encoder, [*config.data.runs, *captioned]
