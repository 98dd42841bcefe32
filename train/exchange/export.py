"""`altalign export RUN DIR --to …`: a trained model as other libraries open it, opened again there and compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from altalign import __version__, storage, terminal
from altalign.errors import AltalignError, UsageError, check_package
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.exchange import encoders, to_align, to_hub, to_onnx, to_open_clip, to_timm
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.forms import Reopened
from altalign.train.exchange.libraries import quiet
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

TARGETS: dict[str, ModuleType] = {"align": to_align, "open_clip": to_open_clip, "onnx": to_onnx, "timm": to_timm}
_CAPTIONS = 8  # that are compared


def export(run: str, folder: str, *, to: str, step: int | None, overrides: Mapping[str, object]) -> int:
    """Write a model to a new folder, open it again and compare; nothing stays where it differs."""
    if storage.is_remote(folder):
        raise UsageError(f"{folder}: other libraries write to a disk alone; give a local folder, and copy it there")
    if storage.kind(folder) != "missing":
        raise UsageError(f"{folder}: it is there already; give a new folder")
    trained, place = encoders.trained(run, step=step, evaluation=overrides), Path(folder)
    is_for_hub, to = to == "hub", to_hub.form_of(trained) if to == "hub" else to
    if why := _unfit(trained, to):
        raise UsageError(f"{run}: {why}")
    target = TARGETS[to]
    check_package(target.PACKAGE, f"--to {to}", extra=to)  # which opens what is written
    try:
        place.mkdir(parents=True)
        with quiet(), terminal.progress_bar("exporting", 3, "steps") as advance:
            notes = [*target.write(trained, place), *([to_hub.NOTE] if is_for_hub else [])]
            advance()
            reopened = target.reopen(trained, place)
            advance()
            differences = _differences(trained, reopened)
            advance()
        worst = max(differences.values())
        if not worst <= target.TOLERANCE:
            why = f"opened again, embeddings differ by {worst:.2g}, more than {target.TOLERANCE:g}"
            raise AltalignError(f"--to {to}: {why}; please report it")
        write_card(trained, place, to=to, differences=differences, notes=notes, is_for_hub=is_for_hub)
    except BaseException:
        storage.delete(folder)
        raise
    out = terminal.stdout()
    shown = f"{terminal.shown(folder)}: step {trained.step:,}, opened again"
    out.print(f"{shown}; largest difference of {_in_words(differences)}", soft_wrap=True)
    for note in notes:
        out.print(f"- {note}", soft_wrap=True)
    return 0


def _unfit(trained: Trained, to: str) -> str:
    why = TARGETS[to].unfit(trained)
    return f"--to {to} cannot hold this model: {why}" if why else ""


def foreseen(config: TrainConfig, model: DualEncoder) -> dict[str, str]:
    """Why a form cannot hold a model that is to be trained, by the forms; empty where it can."""
    trained = Trained(Path(), 0, config, cast(CaptionTokenizer, None), model)  # no form asks for its words
    return {to: _unfit(trained, to) for to in TARGETS}


@torch.no_grad()
def _differences(trained: Trained, reopened: Reopened) -> dict[str, float]:
    """The largest difference of a number of an embedding, of images and of captions."""
    px, words, most = trained.evaluation_sizes[1], trained.tokenizer.words(), trained.tokenizer.tokens_at_most
    image_again, text_again = reopened
    generator = torch.Generator().manual_seed(0)
    few = torch.rand(1, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(few, (px, px), mode="bilinear", align_corners=False)
    noise, half = torch.rand(1, 3, px, px, generator=generator), torch.ones(1, 3, px, px)
    half[..., : px // 2] = 0
    pixels = (torch.cat([smooth, noise, half, smooth * noise]) * 255).to(torch.uint8)
    both = {"images": (trained.model.encode_image(pixels), image_again(pixels))}
    if text_again is not None:
        # of the vocabulary's own words, of many lengths; the last is longer than the model takes
        drawn = torch.randint(len(words), (_CAPTIONS, most), generator=torch.Generator().manual_seed(0))
        lengths = [1 + number * most // (_CAPTIONS - 1) for number in range(_CAPTIONS)]
        captions = [" ".join(words[place] for place in row[:size]) for row, size in zip(drawn, lengths, strict=True)]
        tokens, mask = padded(trained.tokenizer.encode(captions), most)
        both["captions"] = (trained.model.encode_text(tokens, mask), text_again(captions))
    return {
        name: float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("nan")
        for name, (ours, theirs) in both.items()
    }


def _in_words(differences: Mapping[str, float]) -> str:
    return ", ".join(f"{what} {apart:.1e}" for what, apart in differences.items())


# The card: where the model comes from, how to open it, how it was evaluated -------------------------------------------


def write_card(
    trained: Trained,
    folder: Path,
    *,
    to: str,
    differences: Mapping[str, float],
    notes: Sequence[str],
    is_for_hub: bool = False,
) -> None:
    """Write `README.md`, `lineage.json`, and the settings of the training as `training.toml`.

    The card of a folder for the Hub has the Hub's metadata.
    """
    facts = lineage(trained) | {"exported_to": to, "largest_differences": dict(differences)}
    storage.write_json(str(folder / "lineage.json"), facts)
    (folder / "training.toml").write_bytes((trained.place / "config.toml").read_bytes())
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    (resize, crop), text = trained.evaluation_sizes, trained.config.text_tower
    image = trained.config.image_tower.architecture
    of_image = f"A ViT ({image})" if trained.config.image_tower.is_vit else f"EfficientNet-{image.upper()}"
    of_text = {"bert": "BERT", "bart": "BART", "clip": "CLIP's text tower", "siglip": "SigLIP's"}[text.architecture]
    library = TARGETS[to].PACKAGE
    plain = f"library_name: {library}\ntags: [image-text, altalign]"
    card = templates.get_template("card.md").render(
        metadata=to_hub.metadata(library, folder.resolve().name, facts) if is_for_hub else plain,
        library=library,
        towers=f"{of_image} and {of_text} of {text.layers} layers x {text.width}",
        parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
        width=trained.model.width,
        tokenizer=trained.tokenizer,
        resize=resize,
        crop=crop,
        differences=_in_words(differences),
        facts=facts,
        notes=notes,
        measured={name: values for name, values in facts["metrics"].items() if "rsum" in values},
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def lineage(trained: Trained) -> dict[str, Any]:
    """What ties the weights to the run, the data and the numbers that were measured."""
    state = storage.read_json(str(trained.place / "state.json"))
    facts = training_folder.recorded(trained.config)
    measured = training_folder.path(trained.config, "eval", f"step-{trained.step:07}", "metrics.json")
    return {
        "altalign": __version__,
        "step": trained.step,
        "samples_seen": state.get("samples_seen"),
        "model_sha256": trained.digest,
        "manifests": state.get("manifests", {}),
        "captioned_manifests": state.get("captioned_manifests", {}),
        "without_lineage": facts.get("without_lineage", []),
        "tokenizer_sha256": trained.tokenizer.digest,
        "trained_with": facts.get("versions", {}),
        "metrics": storage.read_json(measured),
    }
