"""The card of an exported model: where it comes from, how to open it, how it was evaluated."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from altalign import __version__, storage
from altalign.train.exchange.encoders import Trained
from altalign.train.run import training_folder

_LIBRARIES = {"align": "transformers", "open_clip": "open_clip", "onnx": "onnxruntime", "timm": "timm"}


def write(of: Trained, folder: Path, *, to: str, differences: Mapping[str, float], notes: Sequence[str]) -> None:
    """Write `README.md`, `lineage.json`, and the settings of the training as `training.toml`."""
    facts = lineage(of) | {"exported_to": to, "largest_differences": dict(differences)}
    storage.write_json(str(folder / "lineage.json"), facts)
    (folder / "training.toml").write_bytes((of.place / "config.toml").read_bytes())
    (folder / "README.md").write_text(_text(of, facts, to, notes), encoding="utf-8")


def lineage(of: Trained) -> dict[str, Any]:
    """What ties the weights to the run, the data and the numbers that were measured."""
    state = storage.read_json(str(of.place / "state.json"))
    facts = training_folder.recorded(of.config)
    measured = training_folder.path(of.config, "eval", f"step-{of.step:07}", "metrics.json")
    return {
        "altalign": __version__,
        "step": of.step,
        "samples_seen": state.get("samples_seen"),
        "model_sha256": storage.read_json(str(of.place / "manifest.json"))["model.safetensors"],
        "manifests": state.get("manifests", {}),
        "captioned_manifests": state.get("captioned_manifests", {}),
        "without_lineage": facts.get("without_lineage", []),
        "tokenizer_sha256": of.tokenizer.digest,
        "trained_with": facts.get("versions", {}),
        "metrics": storage.read_json(measured),
    }


def _text(of: Trained, facts: Mapping[str, Any], to: str, notes: Sequence[str]) -> str:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    resize, crop = of.evaluation_sizes
    return templates.get_template("card.md").render(
        library=_LIBRARIES[to],
        towers=_towers(of),
        parameters=sum(parameter.numel() for parameter in of.model.parameters()),
        width=of.model.width,
        tokenizer=of.tokenizer,
        resize=resize,
        crop=crop,
        differences=", ".join(f"{what} {value:.1e}" for what, value in facts["largest_differences"].items()),
        facts=facts,
        notes=notes,
        measured={name: values for name, values in facts["metrics"].items() if "rsum" in values},
    )


def _towers(of: Trained) -> str:
    image, text = of.config.image_tower.architecture, of.config.text_tower
    of_image = f"A ViT ({image})" if image.startswith("vit_") else f"EfficientNet-{image.upper()}"
    return f"{of_image} and {'BART' if text.architecture == 'bart' else 'BERT'} of {text.layers} layers x {text.width}"
