"""Verbs of training: `train`, `eval`, `nlip`, `encode`, `export`. Arguments are read before heavy imports."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from altalign import terminal
from altalign.commands.arguments import Parser, positive
from altalign.errors import AltalignError, UsageError, bring

_NEEDED = ("torch", "timm", "transformers", "tokenizers", "safetensors", "tensorboard")


@contextmanager
def trouble_named() -> Iterator[None]:
    """Turns torch's errors of full memory, of a GPU or of the machine, into ours, which says what to do."""
    try:
        yield
    except RuntimeError as error:
        message, kind = " ".join(str(error).split()), type(error).__name__
        if kind == "OutOfMemoryError" or "can't allocate memory" in message:
            words = message.rpartition("DefaultCPUAllocator: ")[2].partition(". ")[0]
            raise AltalignError(
                f"out of memory ({words}); lower [loop] chunk, [evaluation] batch or the sizes of the towers; run it "
                "again, it continues"
            ) from None
        raise


@contextmanager
def loading() -> Iterator[None]:
    """Refuse to go on where the extra is missing. What the block imports takes seconds, which a terminal is told."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UsageError(f"training needs {', '.join(missing)}, not installed here; {bring('train')}")
    with terminal.stderr().status("loading PyTorch"):
        yield


@trouble_named()
def main(argv: Sequence[str]) -> int:
    """Train, or go on training."""
    parser = Parser(
        prog="altalign train",
        description="Train a dual encoder on curated shards; run again, it goes on from its newest checkpoint.",
        epilog="On several GPUs: torchrun … -m altalign train CONFIG",
    )
    parser.add_argument("config", metavar="CONFIG", help="a settings file (TOML) of training")
    parser.add_overrides("override a setting; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and how; write nothing")
    parser.add_argument("--until", metavar="PHASE", default="", help="end after this one of [[phases]]")
    parser.add_argument("--data-changed", action="store_true", help="go on though a run that is trained on has changed")
    parser.add_argument("--sweep", action="store_true", help="fine-tune on each task of VTAB by trials")
    arguments = parser.parse_args(argv)
    if arguments.sweep:
        parser.only(arguments, "--sweep", "sweep", "set", "dry_run")
        from altalign.train.settings.sweep import SweepConfig

        sweeping = SweepConfig.load(arguments.config, arguments.set)
        with loading():
            from altalign.train import sweep

        return sweep.describe(sweeping) if arguments.dry_run else sweep.sweep(sweeping)
    from altalign.train.settings.training import TrainConfig  # pydantic, which --help need not wait for

    config = TrainConfig.load(arguments.config, arguments.set)
    if arguments.until and not config.phases:
        raise UsageError(f"--until {arguments.until}: {arguments.config} has no [[phases]]; leave it out")
    if arguments.data_changed and config.phases:
        raise UsageError(
            f"--data-changed: {arguments.config} has [[phases]], which rest on each other's pairs; train them anew in "
            "another [run] folder"
        )
    with loading():  # torch: seconds, which --help and a wrong setting need not wait for
        from altalign.train import loop, plan
        from altalign.train.nlip import phases
    if arguments.dry_run:
        return plan.describe(config)
    if config.phases:
        return phases.train(config, until=arguments.until)
    return loop.train(config, data_changed=arguments.data_changed)


@trouble_named()
def evaluate(argv: Sequence[str]) -> int:
    """Evaluate a model on sets, or compare two evaluations."""
    parser = Parser(
        prog="altalign eval",
        description="Measure a model: the newest checkpoint of a training run, or --model; writes "
        "RUN/eval/step-NNNNNNN. With two folders of evaluations: which model is better, by the same images.",
    )
    parser.add_argument("given", metavar="CONFIG_OR_RUN", nargs="*", help="a training run or its settings; or two runs")
    parser.add_argument("--sets", metavar="FILE", default="", help="sets to measure on (TOML); else those of CONFIG")
    parser.add_argument("--checkpoint", metavar="STEP", type=int, help="evaluate the checkpoint after this many steps")
    parser.add_argument(
        "--model",
        metavar="NAME",
        default="",
        help="another model on these sets: open_clip:DIR, open_clip:MODEL:FILE, timm:MODEL:FILE, a folder of "
        "AlignModel, a run",
    )
    parser.add_argument("--out", metavar="FOLDER", default="", help="with --sets or two evaluations: where results go")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="of a model; a run: [loop] device")
    parser.add_overrides("override a setting; repeatable")
    arguments = parser.parse_args(argv)
    if len(arguments.given) > 2:
        raise UsageError("give one training run to evaluate, or two evaluations to compare")
    if len(arguments.given) == 2:
        parser.only(arguments, "two evaluations, which are compared as they are", "out")
        return _compare(*arguments.given, out=arguments.out)
    if arguments.device:
        arguments.set = [*arguments.set, f"loop.device={arguments.device}"]
    if arguments.sets:
        from altalign.eval.settings import EvalSets

        sets = EvalSets.load(arguments.sets)
        with loading():
            from altalign.train import sets_evaluation

        return sets_evaluation.evaluate(
            next(iter(arguments.given), ""),
            sets,
            model=arguments.model,
            step=arguments.checkpoint,
            out=arguments.out,
            device=arguments.device or "auto",
            overrides=arguments.set,
        )
    if not arguments.given:
        raise UsageError("give CONFIG, the settings of a training run; or --sets FILE, --model and --out")
    parser.only(arguments, "a training run alone", "set", "device", "model" if arguments.model else "checkpoint")
    from altalign.train.settings.training import TrainConfig  # pydantic, which --help need not wait for

    config = TrainConfig.load(arguments.given[0], arguments.set)
    with loading():
        from altalign.train import evaluation

    if arguments.model and not config.classification.train:
        return evaluation.evaluate_other(config, arguments.model)
    return evaluation.evaluate(config, step=arguments.checkpoint)


def _compare(a: str, b: str, *, out: str) -> int:
    with loading():
        from altalign.eval import results
        from altalign.eval.outcomes import RESAMPLES

    compared = results.compare(a, b, resamples=RESAMPLES)
    if out:
        results.write_comparison(out, compared, a=a, b=b)
    console = terminal.stdout()
    console.print(results.comparison_table(compared))
    console.print(f"A: {terminal.shown(a)}; B: {terminal.shown(b)}. {RESAMPLES:,} resamples", soft_wrap=True)
    return 0


def _parser_of_training(verb: str, description: str) -> Parser:
    """A parser of the folder of a training run, and of one of its checkpoints."""
    parser = Parser(prog=f"altalign {verb}", description=description)
    parser.add_argument("run", metavar="RUN", help="the folder of a training run")
    parser.add_argument("--checkpoint", metavar="STEP", type=int, help="the checkpoint after this many steps")
    return parser


@trouble_named()
def encode(argv: Sequence[str]) -> int:
    """Write embeddings of images and captions."""
    parser = _parser_of_training("encode", "Write the embeddings that a trained model makes, as Parquet.")
    parser.add_argument("input", metavar="INPUT", help="a run, a folder of images, *.tar, *.parquet, or captions.txt")
    parser.add_argument("out", metavar="OUT", help="a new folder")
    parser.add_argument("--batch", metavar="N", type=positive, default=256, help="images at a time (256)")
    parser.add_argument("--image-column", metavar="NAME", default="image", help="of Parquet (image)")
    parser.add_argument("--caption-column", metavar="NAME", default="caption", help="of Parquet (caption)")
    arguments = parser.parse_args(argv)
    with loading():
        from altalign.train import encode

    return encode.encode(
        arguments.run,
        arguments.input,
        arguments.out,
        step=arguments.checkpoint,
        batch=arguments.batch,
        image_column=arguments.image_column,
        caption_column=arguments.caption_column,
    )


@trouble_named()
def export(argv: Sequence[str]) -> int:
    """Write a trained model in another library's form."""
    parser = _parser_of_training("export", "Write a trained model as another library opens it, open it and compare.")
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument("--to", required=True, choices=("align", "open_clip", "onnx", "timm", "hub"), help="the form")
    parser.add_argument("--resize-px", metavar="PX", type=positive, help="side of the resized image, if another")
    parser.add_argument("--crop-px", metavar="PX", type=positive, help="side of its central crop, if another")
    parser.add_argument("--averaged", action="store_true", help="the moving average of the weights")
    arguments = parser.parse_args(argv)
    with loading():
        from altalign.train.exchange import export

    chosen = {"resize_px": arguments.resize_px, "crop_px": arguments.crop_px, "averaged": arguments.averaged}
    return export.export(
        arguments.run,
        arguments.folder,
        to=arguments.to,
        step=arguments.checkpoint,
        overrides={name: value for name, value in chosen.items() if value},
    )


def nlip(argv: Sequence[str]) -> int:
    """Measure noise of pairs, write captions, or find concepts of images, as NLIP (arXiv 2212.07086) has them."""
    parts = {"noise": _noise, "caption": _caption, "concepts": _concepts}
    if argv and (part := parts.get(argv[0])):
        return part(argv[1:])
    parser = Parser(
        prog="altalign nlip",
        usage="altalign nlip noise|caption|concepts …",
        description="noise: how noisy each pair of a training is. caption: a caption of a trained model for each "
        "pair. concepts: the nouns nearest to each image of curated runs. Each has its own --help.",
    )
    parser.add_argument("part", metavar="PART", nargs="?", choices=tuple(parts), help=", ".join(parts))
    parser.parse_args(argv[:1] if argv[:1] in (["-h"], ["--help"]) else [])
    raise UsageError(f"{argv[0] if argv else 'nlip'}: no part of NLIP; there are: {', '.join(parts)}")


@trouble_named()
def _noise(argv: Sequence[str]) -> int:
    parser = _parser_of_training(
        "nlip noise",
        "Measure the loss of each pair that a model was trained on, and how noisy it makes the pair. Writes "
        "RUN/noise/losses.parquet, and a section of RUN/report.html.",
    )
    parser.add_argument("--batch", metavar="N", type=positive, default=0, help="pairs of a batch (as in training)")
    arguments = parser.parse_args(argv)
    with loading():
        from altalign.train.nlip import noise

    return noise.measure(arguments.run, step=arguments.checkpoint, batch=arguments.batch)


@trouble_named()
def _caption(argv: Sequence[str]) -> int:
    parser = _parser_of_training(
        "nlip caption",
        "Write a caption for each pair that a training with a [captioner] was trained on, to "
        "RUN/captions/captions.parquet; run again, it goes on.",
    )
    arguments = parser.parse_args(argv)
    with loading():
        from altalign.train.nlip import captions

    return captions.caption(arguments.run, step=arguments.checkpoint)


@trouble_named()
def _concepts(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="altalign nlip concepts",
        description="Find, by a frozen model, the nouns that are nearest to each image of curated runs.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="finished runs of curation")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--model", metavar="NAME", required=True, help="a training run, open_clip:DIR, or AlignModel")
    parser.add_repeatable("--words", "FILE", "nouns, one a line; repeatable")
    parser.add_argument("--tagger", action="store_true", help="beside --words, the nouns that spaCy finds in texts")
    parser.add_repeatable("--texts", "FILE", "texts, one a line, that nouns are counted in")
    parser.add_argument("--at-least", metavar="N", type=int, default=5, help="texts that a noun is in (5)")
    parser.add_argument("--prompt", metavar="TEXT", default="a photo of", help="what stands before a noun")
    parser.add_argument("--top", metavar="K", type=positive, default=5, help="nouns of an image (5)")
    arguments = parser.parse_args(argv)
    with loading():
        from altalign.train.nlip import concepts

    return concepts.retrieve(
        arguments.runs,
        arguments.out,
        model=arguments.model,
        texts=arguments.texts,
        lists=arguments.words,
        tags=arguments.tagger,
        texts_at_least=arguments.at_least,
        prompt=arguments.prompt,
        top=arguments.top,
    )
