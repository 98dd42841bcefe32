"""Gathers what the report of a training run shows, and writes RUN/report.html."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from altalign import storage, terminal
from altalign.train.data.class_numbers import ClassNumbers
from altalign.train.data.training_data import TrainingData
from altalign.train.exchange.encoders import Encoders
from altalign.train.report import curves, metrics, noise, page, samples
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig


def write(
    config: TrainConfig,
    data: TrainingData,
    encoders: Encoders,
    results: Mapping[str, Mapping[str, float]],
) -> None:
    """Write the page. One rank alone calls it."""
    assert not isinstance(data.tokenizer, ClassNumbers)  # of classes there is no report
    lines, steps = metrics.read(training_folder.path(config, "metrics.jsonl")), config.schedule.steps
    report = page.Report(
        folder=config.run.folder,
        about=about(config, data, encoders.model),
        results={name: dict(values) for name, values in results.items()},
        charts=curves.charts(lines, steps),
        recalls=curves.recalls(lines, steps),
        negatives=curves.negatives(lines, steps),
        noise=noise.of_run(config, data.samples),
        examples=samples.of_pairs(config, data.samples, data.tokenizer, encoders),
        facts=_facts(config),
        settings=training_folder.resolved(config),
    )
    place = training_folder.path(config, "report.html")
    storage.write_bytes(place, page.html("training.html", report=report))
    terminal.stdout().print(f"report: {terminal.shown(place)}", soft_wrap=True)


def anew(config: TrainConfig, data: TrainingData, encoders: Encoders, step: int) -> None:
    """Write the page of a finished training again, with what its last evaluation found."""
    found = storage.read_json(training_folder.path(config, "eval", f"step-{step:07}", "metrics.json"))
    results = {name: values for name, values in found.items() if name != "checkpoint"}
    write(config, data, encoders, results)


def about(config: TrainConfig, data: TrainingData, model: nn.Module, first: int = 0) -> str:
    """One line that says what is trained."""
    pairs, batch, steps = len(data.samples), config.loop.global_batch, config.schedule.steps
    numbers = sum(parameter.numel() for parameter in model.parameters())
    begun = f", going on after step {first:,}" if first else ""
    return (
        f"{steps:,} steps of {batch:,} pairs ({steps * batch / pairs:.1f} epochs of {pairs:,}), {numbers / 1e6:.1f} M "
        f"parameters, {data.tokenizer.vocabulary:,} {data.tokenizer.WHAT}{begun}"
    )


def _facts(config: TrainConfig) -> dict[str, str]:
    """Where the run comes from, in words."""
    facts: dict[str, Any] = training_folder.recorded(config)
    runs = "; ".join(f"{folder} (manifest {digest[:12]})" for folder, digest in facts.get("manifests", {}).items())
    captioned = ", ".join(facts.get("captioned_manifests", {}))
    attempts = "; ".join(
        f"{each['started']}, after step {each['from_step']:,}, {each['ranks']} process{'es' * (each['ranks'] != 1)}, "
        f"{each['device']}"
        for each in facts.get("attempts", [])
    )
    versions = ", ".join(f"{name} {number}" for name, number in facts.get("versions", {}).items() if number)
    known = f"{captioned}: on the data set that these are of, results are not zero-shot" if captioned else ""
    return {
        "Trained on": runs,
        **({"Captions by a model of": known} if known else {}),
        "Attempts": attempts,
        "Versions": f"altalign {facts.get('altalign', '')}, {versions}",
    }
