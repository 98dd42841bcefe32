"""The card of an exported model: where it comes from, how to open it, how it was evaluated."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from altalign import __version__, storage
from altalign.train.exchange.encoders import Trained
from altalign.train.run import training_folder

_OPENED = {
    "align": """from transformers import AlignModel, AutoProcessor

model = AlignModel.from_pretrained("DIR").eval()
processor = AutoProcessor.from_pretrained("DIR")""",
    "open_clip": """import open_clip

model, _, transform = open_clip.create_model_and_transforms("local-dir:DIR")
tokenizer = open_clip.get_tokenizer("local-dir:DIR")
tokenizer.clean_fn = str  # else it cleans captions first""",
    "onnx": """import onnxruntime

image = onnxruntime.InferenceSession("DIR/image.onnx")
text = onnxruntime.InferenceSession("DIR/text.onnx")""",
    "timm": """import timm

model = timm.create_model("local-dir:DIR", pretrained=True).eval()""",
}
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
    image, text = of.config.image_tower, of.config.text_tower
    resize, crop = of.evaluation_sizes
    numbers = sum(parameter.numel() for parameter in of.model.parameters())
    runs = [f"- `{folder}`: manifest.json has SHA-256 `{digest}`" for folder, digest in facts["manifests"].items()]
    runs += [f"- `{pattern}`: without lineage, for no curation has made it" for pattern in facts["without_lineage"]]
    measured = [
        f"| {name} | {values['image_to_text_r1']:.1f} | {values['text_to_image_r1']:.1f} | {values['rsum']:.1f} |"
        for name, values in facts["metrics"].items()
        if "rsum" in values
    ]
    table = ["| Set | image to text R@1 | text to image R@1 | sum of six |", "|---|---:|---:|---:|", *measured]
    apart = ", ".join(f"{what} {value:.1e}" for what, value in facts["largest_differences"].items())
    return "\n".join(
        [
            "---",
            f"library_name: {_LIBRARIES[to]}",
            "tags: [image-text, altalign]",
            "---",
            "",
            "# A dual encoder trained by altalign",
            "",
            f"{_image_tower(image.architecture)} and {'BART' if text.architecture == 'bart' else 'BERT'} of "
            f"{text.layers} layers x {text.width}; "
            f"{numbers / 1e6:.1f} M parameters; embeddings of {of.model.width:,}. Images are resized to {resize} x "
            f"{resize} px, of which the model sees the middle {crop} px; pixels are scaled to -1..1. Captions have at "
            f"most {of.tokenizer.tokens_at_most} word pieces of {of.tokenizer.vocabulary:,}.",
            "",
            "## Open it",
            "",
            "```python",
            _OPENED[to].replace("DIR", "."),
            "```",
            "",
            f"Opened again after it was written, embeddings differed from the trained model's by at most: {apart}.",
            "",
            *(f"- {note}" for note in notes),
            "",
            "## What it was trained on",
            "",
            *(runs or ["- not known"]),
            "",
            *_captioned(facts["captioned_manifests"]),
            f"{of.step:,} steps, {facts['samples_seen'] or 0:,} pairs seen. `training.toml` has all settings, "
            "`lineage.json` these facts.",
            "",
            "## What was measured",
            "",
            *(table if measured else ["Nothing was evaluated after this step."]),
            "",
        ]
    )


def _image_tower(architecture: str) -> str:
    return f"A ViT ({architecture})" if architecture.startswith("vit_") else f"EfficientNet-{architecture.upper()}"


def _captioned(manifests: Mapping[str, str]) -> list[str]:
    """What was learned through written captions, where there are any, and what is no zero-shot result any more."""
    if not manifests:
        return []
    return [
        "Captions of its noisy pairs were written by a model that had learned from these captioned pairs:",
        "",
        *(f"- `{folder}`: manifest.json has SHA-256 `{digest}`" for folder, digest in manifests.items()),
        "",
        "**Results on the data set that they are of are not zero-shot**: on MSCOCO, where they are MSCOCO's. Those on "
        "Flickr30K, whose captions are alike, profit too.",
        "",
    ]
