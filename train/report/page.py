"""RUN/report.html of a training, and of one in phases: HTML files that load nothing and run nothing."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from markupsafe import Markup
from PIL import Image
from torch import nn

from altalign import __version__, storage, terminal
from altalign.pages import frame
from altalign.train.data import augment, by_key, captions, noise_estimates
from altalign.train.data.augment import UndecodableError
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.data.training_data import CAPTIONS, TrainingData, samples_of
from altalign.train.exchange.encoders import Encoders, decoder_of
from altalign.train.report import curves, metrics
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

EPOCHS, EXAMPLES, SOURCES_AT_MOST = 4, 6, 8  # of the pairs as training sees them
PAIRS = 12  # of a gallery of noise or captions
_SIDE_PX = 160  # of the pictures on the page, at most
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Seen:
    """An image (a data URI) and a caption, as a tower sees them; a note, and a caption that a model wrote."""

    image: str
    caption: str
    note: str = ""
    written: str = ""


def html(template: str, **values: object) -> bytes:
    """A page of a template and what it shows, in UTF-8."""
    style = frame.joined(("page.css", "training.css"), _HERE / "static")
    page = frame.environment(_HERE / "templates").get_template(template)
    shared = {"style": Markup(style), "policy": frame.policy("", style), "generator": f"altalign {__version__}"}
    return page.render(**values, **shared).encode("utf-8", "backslashreplace")


def write(
    config: TrainConfig, data: TrainingData, encoders: Encoders, results: Mapping[str, Mapping[str, float]]
) -> None:
    """Write the page of a training on captions, with what its last evaluation measured. One rank alone calls it."""
    assert not isinstance(data.tokenizer, ClassNumbers)  # of classes there is no report
    lines, steps = metrics.read(training_folder.path(config, "metrics.jsonl")), config.schedule.steps
    page = html(
        "training.html",
        folder=config.run.folder,
        about=about(config, data, encoders.model),
        results=results,
        charts=curves.charts(lines, steps),
        recalls=curves.recalls(lines, steps),
        negatives=curves.negatives(lines, steps),
        noise=_noise(config, data.samples),
        examples=_examples(config, data.samples, data.tokenizer, encoders),
        facts=_facts(config),
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


def write_phases(config: TrainConfig, of_phases: Mapping[str, TrainConfig]) -> None:
    """Write RUN/report.html of all phases, from the files that they have left; `of_phases` are those that train."""
    views, before, measured = list[dict[str, Any]](), TrainConfig(), ""
    for phase in config.phases:
        nothing = dict.fromkeys(("steps", "is_finished", "results", "charts", "noise", "written"))
        views.append({**nothing, "name": phase.name, "does": phase.does})
        match phase.does:
            case "train":
                before = of_phases[phase.name]
                steps, lines = before.schedule.steps, metrics.read(training_folder.path(before, "metrics.jsonl"))
                charts = filter(None, (curves.losses(lines, steps), curves.recalls(lines, steps)))
                is_finished = storage.exists(training_folder.path(before, "report.html"))
                of_last = {"results": results(before, steps), "charts": list(charts)}
                views[-1] |= {"steps": steps, "is_finished": is_finished, **of_last}
            case "noise":
                measured = noise_estimates.table_of(before)
                noise = _noise(before, samples_of(before)) if storage.exists(measured) else None
                views[-1] |= {"noise": noise, "is_finished": noise is not None}
            case "captions":
                written = _written(config, before, measured)
                views[-1] |= {"written": written, "is_finished": bool(written)}
    place, settings = training_folder.path(config, "report.html"), training_folder.resolved(config)
    storage.write_bytes(place, html("phases.html", folder=config.run.folder, phases=views, settings=settings))
    terminal.stdout().print(f"report of all phases: {terminal.shown(place)}", soft_wrap=True)


def results(config: TrainConfig, step: int) -> dict[str, Any]:
    """What the evaluation after so many steps measured, by set."""
    values = storage.read_json(training_folder.path(config, "eval", f"step-{step:07}", "metrics.json"))
    return {name: of_set for name, of_set in values.items() if name != "checkpoint"}


def _facts(config: TrainConfig) -> dict[str, str]:
    """Where the run comes from, in words."""
    facts: dict[str, Any] = training_folder.recorded(config)
    runs = "; ".join(f"{folder} (manifest {digest[:12]})" for folder, digest in facts.get("manifests", {}).items())
    words = {"Trained on": runs}
    if captioned := ", ".join(facts.get("captioned_manifests", {})):
        words["Captions by a model of"] = f"{captioned}: on the data set that these are of, results are not zero-shot"
    words["Attempts"] = "; ".join(
        f"{each['started']}, after step {each['from_step']:,}, {each['ranks']} process{'es' * (each['ranks'] != 1)}, "
        f"{each['device']}"
        for each in facts.get("attempts", [])
    )
    versions = [f"{name} {number}" for name, number in facts.get("versions", {}).items() if number]
    return words | {"Versions": ", ".join([f"altalign {facts.get('altalign', '')}", *versions])}


def _examples(
    config: TrainConfig, samples: Samples, tokenizer: CaptionTokenizer, encoders: Encoders
) -> list[tuple[str, list[Seen]]]:
    """Pairs of the sources in turn: the source; the pair as evaluation sees it, and as training does in epochs."""
    seed, examples = config.run.seed, list[tuple[str, list[Seen]]]()
    for source, number in in_turn(samples.sources):
        (pair,) = rows = samples.pairs(np.array([number], np.int64))
        ((image, caption),) = samples.read(rows)
        key = key_of(pair)
        with suppress(UndecodableError):  # training has named it
            seen = [Seen(_picture(encoders.decode(image)), caption, "in evaluation")]
            for epoch in range(EPOCHS):
                pixels = augment.training_pixels(image, config.data, seed=seed, epoch=epoch, key=key)
                (pieces,) = captions.tokens([caption], tokenizer, config.data, seed=seed, epochs=[epoch], keys=[key])
                seen.append(Seen(_picture(pixels), tokenizer.shown(pieces), f"epoch {epoch + 1}"))
            examples.append((source, seen))
    return examples


def in_turn(sources: Mapping[str, int]) -> list[tuple[str, int]]:
    """The first pairs of the largest sources in turn: source, and number in `Samples`, whose order is of hashes."""
    begins = dict(zip(sources, np.cumsum([0, *sources.values()]).tolist(), strict=False))
    names = sorted(sorted(sources, key=lambda name: (-sources[name], name))[:SOURCES_AT_MOST])
    return [(name, begins[name] + at) for at in range(EXAMPLES) for name in names if at < sources[name]][:EXAMPLES]


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
    by_noise = np.lexsort((-np.nan_to_num(measured.losses), -measured.eps))
    by_loss = np.argsort(measured.losses, kind="stable")  # NaN are last

    def shown(places: Iterable[int]) -> list[Seen]:
        notes = ((place, f"eps {measured.eps[place]:.3f}, loss {measured.losses[place]:.3g}") for place in places)
        return _gallery(samples, decode, [(int(measured.numbers[place]), note, "") for place, note in notes])

    return {
        "pairs": pairs,
        "noisy": int((measured.eps > 0.5).sum()),
        "is_one": mixture.is_one,
        "groups": list(zip(mixture.shares, mixture.means, mixture.deviations, strict=True)),
        "cleanest": shown(by_loss[: min(PAIRS, pairs)].tolist()),
        "noisiest": [] if mixture.is_one else shown(by_noise[:PAIRS].tolist()),
    }


def _written(whole: TrainConfig, captioner: TrainConfig, measured: str) -> list[Seen]:
    """Pairs of the whole with what the captioner has written for them, and how noisy they are held for, if known.

    The noisiest come first.
    """
    place = training_folder.path(captioner, *CAPTIONS.split("/"))
    if not storage.exists(place):
        return []
    samples = samples_of(whole)
    keys, numbers = by_key.in_order(samples)
    texts = pq.read_table(pa.BufferReader(storage.read_bytes(place)), columns=["caption"])["caption"].to_pylist()
    order, notes = range(len(keys)), [""] * len(keys)
    if measured and storage.exists(measured):
        place = training_folder.local(whole, "index", "noise.arrow")
        eps = by_key.opened(measured, place, "eps", "[noise] estimates").floats(by_key.names_of(keys))
        order, notes = np.argsort(-eps, kind="stable").tolist(), [f"eps {one:.3f}" for one in eps.tolist()]
    pairs = [(int(numbers[row]), notes[row], str(texts[row])) for row in order[:PAIRS]]
    return _gallery(samples, decoder_of(captioner), pairs)


def _gallery(
    samples: Samples, decode: Callable[[bytes], torch.Tensor], pairs: Iterable[tuple[int, str, str]]
) -> list[Seen]:
    """Pairs by number, note and written caption, as evaluation sees them, less those that cannot be decoded."""
    gallery = list[Seen]()
    for number, note, written in pairs:
        ((image, caption),) = samples.read(samples.pairs(np.array([number], np.int64)))
        with suppress(UndecodableError):
            gallery.append(Seen(_picture(decode(image)), caption, note, written))
    return gallery


def _picture(pixels: torch.Tensor) -> str:
    """The data URI of a picture of uint8 (3, height, width) for a page."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((_SIDE_PX, _SIDE_PX))
    data = BytesIO()
    picture.save(data, "WEBP", quality=80)
    return frame.data_uri(data.getvalue())
