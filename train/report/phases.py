"""The report of a training in phases: what each phase came to, on one page that loads nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.train.data import noise_estimates
from altalign.train.data.noise_losses import in_order, table_of
from altalign.train.data.training_data import CAPTIONS, samples_of
from altalign.train.exchange.encoders import decoder_of
from altalign.train.report import curves, metrics, noise, page
from altalign.train.report.curves import Chart
from altalign.train.report.noise import NoiseView
from altalign.train.report.samples import Seen, gallery
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

PAIRS = 12  # of the gallery of captions


@dataclass(frozen=True)
class PhaseView:
    """The section of a phase."""

    name: str  # as in the settings
    does: str
    steps: int = 0  # of a training
    is_there: bool = False  # whether it is finished
    results: Mapping[str, Mapping[str, float]] | None = None  # of its last evaluation, by set
    charts: Sequence[Chart] = ()  # losses and recalls over its steps
    noise: NoiseView | None = None  # how noisy the pairs are
    written: Sequence[Seen] = ()  # captions beside the pairs' own, the noisiest pairs first


def write(config: TrainConfig, of_phases: Mapping[str, TrainConfig]) -> None:
    """Write RUN/report.html of all phases, from the files that they have left; `of_phases` are those that train."""
    views, before, measured = list[PhaseView](), TrainConfig(), ""
    for phase in config.phases:
        match phase.does:
            case "train":
                before = of_phases[phase.name]
                views.append(_trained(phase.name, before))
            case "noise":
                measured = table_of(before)
                found = noise.of_run(before, samples_of(before)) if storage.exists(measured) else None
                views.append(PhaseView(phase.name, phase.does, is_there=found is not None, noise=found))
            case "captions":
                written = _written(config, before, measured)
                views.append(PhaseView(phase.name, phase.does, is_there=bool(written), written=written))
    place = training_folder.path(config, "report.html")
    settings = training_folder.resolved(config)
    storage.write_bytes(place, page.html("phases.html", folder=config.run.folder, phases=views, settings=settings))
    terminal.stdout().print(f"report of all phases: {terminal.shown(place)}", soft_wrap=True)


def _trained(name: str, config: TrainConfig) -> PhaseView:
    steps, lines = config.schedule.steps, metrics.read(training_folder.path(config, "metrics.jsonl"))
    place = training_folder.path(config, "eval", f"step-{steps:07}", "metrics.json")
    results = {name: values for name, values in storage.read_json(place).items() if name != "checkpoint"}
    charts = [chart for chart in (curves.losses(lines, steps), curves.recalls(lines, steps)) if chart is not None]
    is_there = storage.exists(training_folder.path(config, "report.html"))
    return PhaseView(name, "train", steps=steps, is_there=is_there, results=results, charts=charts)


def _written(whole: TrainConfig, captioner: TrainConfig, measured: str) -> list[Seen]:
    """Pairs of the whole with what the captioner has written for them, and how noisy they are held for, if known."""
    place = training_folder.path(captioner, *CAPTIONS.split("/"))
    if not storage.exists(place):
        return []
    samples = samples_of(whole)
    keys, numbers = in_order(samples)
    captions = pq.read_table(pa.BufferReader(storage.read_bytes(place)), columns=["caption"])["caption"].to_pylist()
    order, notes = range(len(keys)), [""] * len(keys)
    if measured and storage.exists(measured):
        eps = noise_estimates.read(measured).of(noise_estimates.names_of(keys))
        order, notes = np.argsort(-eps, kind="stable").tolist(), [f"eps {one:.3f}" for one in eps.tolist()]
    pairs = [(int(numbers[row]), notes[row], str(captions[row])) for row in order[:PAIRS]]
    return gallery(samples, decoder_of(captioner), pairs)
