"""`altalign nlip`: what NLIP (arXiv 2212.07086) measures, writes and finds beside a training."""

from collections.abc import Sequence

from altalign.commands.arguments import Parser
from altalign.commands.train import check_installed, parser_of_training, positive, trouble_named
from altalign.errors import UsageError


def nlip(argv: Sequence[str]) -> int:
    """Measure noise of pairs, write captions, or find concepts of images."""
    parts = {"noise": _noise, "caption": _caption, "concepts": _concepts}
    if argv and (part := parts.get(argv[0])):
        return part(argv[1:])
    parser = Parser(
        prog="altalign nlip",
        usage="altalign nlip noise|caption|concepts …",
        description="noise: how noisy each pair of a training is. caption: a caption of a trained model for each "
        "pair. concepts: the nouns nearest to each image of curated runs. Each has its own --help.",
    )
    parser.parse_args(argv[:1] if argv[:1] in (["-h"], ["--help"]) else [])
    raise UsageError(f"{argv[0] if argv else 'nlip'}: no part of NLIP; there are: {', '.join(parts)}")


def _noise(argv: Sequence[str]) -> int:
    """Measure how noisy the pairs of a training run are."""
    parser = parser_of_training(
        "nlip noise",
        "Measure the loss of each pair that a model was trained on, and how noisy it makes the pair. Writes "
        "RUN/noise/losses.parquet, and a section of RUN/report.html.",
    )
    parser.add_argument("--batch", metavar="N", type=positive, default=0, help="pairs of a batch (as in training)")
    arguments = parser.parse_args(argv)
    check_installed()

    from altalign.train.nlip import noise

    with trouble_named():
        return noise.measure(arguments.run, step=arguments.checkpoint, batch=arguments.batch)


def _caption(argv: Sequence[str]) -> int:
    """Write a caption of a trained model for each pair."""
    parser = parser_of_training(
        "nlip caption",
        "Write a caption for each pair that a training with a [captioner] was trained on, to "
        "RUN/captions/captions.parquet; run again, it goes on.",
    )
    arguments = parser.parse_args(argv)
    check_installed()

    from altalign.train.nlip import captions

    with trouble_named():
        return captions.caption(arguments.run, step=arguments.checkpoint)


def _concepts(argv: Sequence[str]) -> int:
    """Find the nouns of each image of curated runs."""
    parser = Parser(
        prog="altalign nlip concepts",
        description="Find, by a frozen model, the nouns that are nearest to each image of curated runs.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="finished runs of curation")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    parser.add_argument(
        "--model", metavar="NAME", required=True, help="a training run, open_clip:DIR, or a folder of AlignModel"
    )
    parser.add_argument("--words", metavar="FILE", action="append", default=[], help="nouns, one a line; repeatable")
    parser.add_argument(
        "--texts", metavar="FILE", action="append", default=[], help="texts, one a line, that nouns are counted in"
    )
    parser.add_argument("--at-least", metavar="N", type=int, default=5, help="texts that a noun is in (5)")
    parser.add_argument("--prompt", metavar="TEXT", default="a photo of", help="what stands before a noun")
    parser.add_argument("--top", metavar="K", type=positive, default=5, help="nouns of an image (5)")
    arguments = parser.parse_args(argv)
    check_installed()

    from altalign.train.nlip import concepts

    with trouble_named():
        return concepts.retrieve(
            arguments.runs,
            arguments.out,
            model=arguments.model,
            texts=arguments.texts,
            lists=arguments.words,
            texts_at_least=arguments.at_least,
            prompt=arguments.prompt,
            top=arguments.top,
        )
