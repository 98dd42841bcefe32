"""`altalign train …` and `altalign eval …`: their arguments and settings, read before anything heavy is imported."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from altalign.arguments import Parser
from altalign.errors import AltalignError, UsageError, bring

if TYPE_CHECKING:
    from altalign.train.settings import TrainConfig

_NEEDED = ("torch", "timm", "transformers", "tokenizers", "safetensors", "tensorboard")


def main(argv: Sequence[str]) -> int:
    """Train, or go on training."""
    parser = _parser(
        "train", "Train a dual encoder on curated shards; run again, it goes on from its newest checkpoint."
    )
    parser.epilog = "On several GPUs: torchrun … -m altalign train CONFIG"
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, on what and how; write nothing"
    )
    arguments = parser.parse_args(argv)
    config = _settings(arguments)

    if arguments.dry_run:
        from altalign.train import plan  # torch: seconds, which --help and a wrong setting need not wait for

        return plan.describe(config)

    from altalign.train import loop

    with _trouble_named():
        return loop.train(config)


def evaluate(argv: Sequence[str]) -> int:
    """Evaluate a checkpoint of a training run."""
    parser = _parser(
        "eval",
        "Evaluate the newest checkpoint of a training run: writes RUN/eval/step-NNNNNNN/metrics.json, prints a table.",
    )
    parser.add_argument("--checkpoint", metavar="STEP", type=int, help="evaluate the checkpoint after this many steps")
    parser.add_argument(
        "--model",
        metavar="NAME",
        default="",
        help="another model on these sets: open_clip:DIR, open_clip:MODEL:FILE, a folder of AlignModel, a run",
    )
    arguments = parser.parse_args(argv)
    config = _settings(arguments)

    from altalign.train import evaluation

    with _trouble_named():
        if arguments.model:
            return evaluation.evaluate_other(config, arguments.model)
        return evaluation.evaluate(config, step=arguments.checkpoint)


def encode(argv: Sequence[str]) -> int:
    """Write embeddings of images and captions."""
    parser = Parser(prog="altalign encode", description="Write the embeddings that a trained model makes, as Parquet.")
    parser.add_argument("run", metavar="RUN", help="the folder of a training run")
    parser.add_argument(
        "input", metavar="INPUT", help="a run folder, a folder of images, *.tar, *.parquet, or a .txt of captions"
    )
    parser.add_argument("out", metavar="OUT", help="a new folder")
    parser.add_argument("--checkpoint", metavar="STEP", type=int, help="the checkpoint after this many steps")
    parser.add_argument("--batch", metavar="N", type=_positive, default=256, help="images at a time (256)")
    parser.add_argument("--image-column", metavar="NAME", default="image", help="of Parquet (image)")
    parser.add_argument("--caption-column", metavar="NAME", default="caption", help="of Parquet (caption)")
    arguments = parser.parse_args(argv)
    _check_installed()

    from altalign.train import encode

    with _trouble_named():
        return encode.encode(
            arguments.run,
            arguments.input,
            arguments.out,
            step=arguments.checkpoint,
            batch=arguments.batch,
            image_column=arguments.image_column,
            caption_column=arguments.caption_column,
        )


def export(argv: Sequence[str]) -> int:
    """Write a trained model in another library's form."""
    parser = Parser(
        prog="altalign export", description="Write a trained model as another library opens it, open it and compare."
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a training run")
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument("--to", required=True, choices=("align", "open_clip", "onnx", "timm"), help="the form")
    parser.add_argument("--checkpoint", metavar="STEP", type=int, help="the checkpoint after this many steps")
    parser.add_argument("--resize-px", metavar="PX", type=_positive, help="side of the resized image, if another")
    parser.add_argument("--crop-px", metavar="PX", type=_positive, help="side of its central crop, if another")
    arguments = parser.parse_args(argv)
    _check_installed()

    from altalign.train.exchange import export

    given = {"resize_px": arguments.resize_px, "crop_px": arguments.crop_px}
    with _trouble_named():
        return export.export(
            arguments.run,
            arguments.folder,
            to=arguments.to,
            step=arguments.checkpoint,
            overrides={name: px for name, px in given.items() if px},
        )


def _positive(word: str) -> int:
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word}: not a whole number above 0")
    return int(word)


@contextmanager
def _trouble_named() -> Iterator[None]:
    """Around the work: torch says in words of its own that memory is full, of a GPU or of the machine.

    Raises:
        AltalignError: saying what to do.
    """
    try:
        yield
    except RuntimeError as error:
        said, kind = " ".join(str(error).split()), type(error).__name__
        if kind == "OutOfMemoryError" or "can't allocate memory" in said:
            words = said.rpartition("DefaultCPUAllocator: ")[2].partition(". ")[0]
            raise AltalignError(
                f"out of memory ({words}); lower [loop] chunk, [evaluation] batch or the sizes of the towers; run it "
                "again, it continues"
            ) from None
        raise


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"altalign {verb}", description=description)
    parser.add_argument("config", metavar="CONFIG", help="a settings file (TOML) of training")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting; repeatable"
    )
    return parser


def _settings(arguments: argparse.Namespace) -> "TrainConfig":
    """The settings, where all that training needs is installed.

    Raises:
        UsageError: a setting is wrong, or the extra is missing.
    """
    from altalign.train.settings import TrainConfig  # pydantic, which --help need not wait for

    config = TrainConfig.load(arguments.config, arguments.set)
    _check_installed()
    return config


def _check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}, not installed here; {bring('train')}")
