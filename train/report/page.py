"""RUN/report.html of a training: an HTML file that loads nothing and runs nothing."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image
from torch import nn

from altalign import __version__, storage, terminal
from altalign.pages import frame
from altalign.train.data import noise_estimates
from altalign.train.data.augment import UndecodableError
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.samples import Samples
from altalign.train.data.training_data import TrainingData
from altalign.train.exchange.encoders import decoder_of
from altalign.train.report import metrics
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import OWN_LOSSES

POINTS_AT_MOST = 300  # of a curve: a long run has a hundred thousand lines
PAIRS = 12  # of a gallery
_SIDE_PX = 160  # of the pictures on the page, at most
_TICKS = 4
_RECALL = "/mean_recall"
_HERE = Path(__file__).parent

Points = Sequence[tuple[float, float]]  # step and value


@dataclass(frozen=True)
class Chart:
    """Curves of one unit by their names, over the steps of a training."""

    title: str
    curves: Mapping[str, Points]
    steps: int

    @property
    def ticks(self) -> list[float]:
        """Numbers up the side, evenly from the least value to the largest."""
        values = [value for points in self.curves.values() for _, value in points]
        low, high = min(values), max(values)
        return np.linspace(low, high if high > low else low + 1, _TICKS).tolist()

    def places(self, points: Points) -> Points:
        """A curve's points in a square of 100 by 100, up is less."""
        low, *_, high = self.ticks
        return [
            (round(100 * step / self.steps, 2), round(100 * (high - value) / (high - low), 2)) for step, value in points
        ]


@dataclass(frozen=True)
class Seen:
    """An image (a data URI) and a caption, as evaluation sees them, and a note."""

    image: str
    caption: str
    note: str


def html(**values: object) -> bytes:
    """The page of what it shows, in UTF-8."""
    style = frame.joined(("page.css", "training.css"), _HERE / "static")
    page = frame.environment(_HERE / "templates").get_template("training.html")
    shared = {"style": Markup(style), "policy": frame.policy("", style), "generator": f"altalign {__version__}"}
    return page.render(**values, **shared).encode("utf-8", "backslashreplace")


def write(
    config: TrainConfig, data: TrainingData, model: nn.Module, results: Mapping[str, Mapping[str, float]]
) -> None:
    """Write the page of a training on captions, with what its last evaluation measured. One rank alone calls it."""
    assert not isinstance(data.tokenizer, ClassNumbers)  # of classes there is no report
    recorded = training_folder.recorded(config)
    runs = (f"{folder} (manifest {digest[:12]})" for folder, digest in recorded.get("manifests", {}).items())
    page = html(
        folder=config.run.folder,
        about=about(config, data, model),
        results=results,
        charts=charts(metrics.read(training_folder.path(config, "metrics.jsonl")), config.schedule.steps),
        noise=_noise(config, data.samples),
        trained_on="; ".join(runs),
        captioned=", ".join(recorded.get("captioned_manifests", {})),
        settings=training_folder.resolved(config),
    )
    place = training_folder.path(config, "report.html")
    storage.write_bytes(place, page)
    terminal.stdout().print(f"report: {terminal.shown(place)}", soft_wrap=True)


def about(config: TrainConfig, data: TrainingData, model: nn.Module, first: int = 0) -> str:
    """One line that says what is trained."""
    pairs, batch, steps = len(data.samples), config.loop.global_batch, config.schedule.steps
    numbers = sum(parameter.numel() for parameter in model.parameters())
    begun = f", going on after step {first:,}" if first else ""
    return (
        f"{steps:,} steps of {batch:,} pairs ({steps * batch / pairs:.1f} epochs of {pairs:,}), {numbers / 1e6:.1f} M "
        f"parameters, {data.tokenizer.vocabulary:,} {data.tokenizer.WHAT}{begun}"
    )


def charts(lines: Sequence[Mapping[str, Any]], steps: int) -> list[Chart]:
    """Curves of loss, temperature, speed and recalls, of those that any line of metrics has."""
    recalls = dict.fromkeys(name for line in lines for name in line if name.endswith(_RECALL))
    wanted = {
        "Loss": {"loss": "loss", **{name.removeprefix("loss_"): name for name in OWN_LOSSES}},
        "Temperature": {"temperature": "temperature"},
        "Pairs a second": {"pairs a second": "samples_per_s"},
        "Mean recall, percent": {name.removesuffix(_RECALL): name for name in recalls},
    }
    made = list[Chart]()
    for title, names in wanted.items():
        curves = dict[str, Points]()
        for shown, name in names.items():
            points = [(float(line["step"]), float(line[name])) for line in lines if name in line]
            size = -(-len(points) // POINTS_AT_MOST)
            groups = [points[first : first + size] for first in range(0, len(points), size or 1)]
            curves[shown] = [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]
        if any(curves.values()):
            made.append(Chart(title, {name: points for name, points in curves.items() if points}, steps))
    return made


def results(config: TrainConfig, step: int) -> dict[str, Any]:
    """What the evaluation after so many steps measured, by set."""
    values = storage.read_json(training_folder.path(config, "eval", f"step-{step:07}", "metrics.json"))
    return {name: of_set for name, of_set in values.items() if name != "checkpoint"}


def _noise(config: TrainConfig, samples: Samples) -> dict[str, Any] | None:
    """How noisy the pairs of a run are; None where it was not measured.

    `pairs` that were measured; `noisy`, of them, more likely noisy than clean; `is_one`, whether the losses do not fall
    into two groups; `groups`, share, mean and deviation of each, the lower first; `cleanest`, pairs with the least
    losses; `noisiest`, those with the greatest eps, the greatest loss first.
    """
    measured = noise_estimates.known(config, samples)
    if measured is None:
        return None
    mixture, decode = measured.mixture, decoder_of(config)
    pairs = int((~np.isnan(measured.losses)).sum())

    def shown(places: Sequence[int]) -> list[Seen]:
        """Pairs as evaluation sees them, less those that cannot be decoded."""
        gallery = list[Seen]()
        for place in places:
            ((image, caption),) = samples.read(samples.pairs(measured.numbers[place : place + 1]))
            note = f"eps {measured.eps[place]:.3f}, loss {measured.losses[place]:.3g}"
            with suppress(UndecodableError):
                picture, data = Image.fromarray(decode(image).permute(1, 2, 0).contiguous().numpy()), BytesIO()
                picture.thumbnail((_SIDE_PX, _SIDE_PX))
                picture.save(data, "WEBP", quality=80)
                gallery.append(Seen(frame.data_uri(data.getvalue()), caption, note))
        return gallery

    by_loss = np.argsort(measured.losses, kind="stable")  # NaN are last
    by_noise = np.lexsort((-np.nan_to_num(measured.losses), -measured.eps))
    return {
        "pairs": pairs,
        "noisy": int((measured.eps > 0.5).sum()),
        "is_one": mixture.is_one,
        "groups": list(zip(mixture.shares, mixture.means, mixture.deviations, strict=True)),
        "cleanest": shown(by_loss[: min(PAIRS, pairs)].tolist()),
        "noisiest": [] if mixture.is_one else shown(by_noise[:PAIRS].tolist()),
    }
