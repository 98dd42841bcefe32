"""`altalign score`: scores of a run's samples, and clusters of its images, beside its shards."""

from collections.abc import Sequence

from altalign.commands.arguments import Parser
from altalign.commands.run_arguments import TO_BEAM, add_overrides, config_of_run, fitted, parted
from altalign.errors import UsageError
from altalign.machine import startup


def score(argv: Sequence[str]) -> int:
    """Measure scores on the samples of a finished run."""
    parser = Parser(
        prog="altalign score",
        description="Measure scores on the samples of a finished run: RUN/scores/NAME has a file for each shard. "
        "Shards that have a score are not measured again. `altalign select` decides by scores. With --clusters, sort "
        "its images into clusters by k-means, in RUN/clusters; a training takes them with [data] sources = "
        '"clusters".',
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--with", dest="scores", metavar="FILE", default="", help="what to measure (TOML)")
    parser.add_argument("--clusters", type=int, metavar="K", help="instead: sort images into so many at most")
    parser.add_argument(
        "--embedder",
        metavar="NAME",
        help="of clusters: as [decontaminate] embedder (dct)",
    )
    parser.add_argument("--anew", action="store_true", help="replace values that rest on other settings or files")
    add_overrides(parser, "override a setting of the run, as engine.workers")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if bool(arguments.scores) == (arguments.clusters is not None):
        raise UsageError("give --with FILE or --clusters K, one of the two")
    if arguments.clusters is not None:
        if arguments.anew or arguments.set or flags:
            raise UsageError("--clusters: takes --embedder alone; leave --anew, --set and flags for Beam out")
        return _clusters(arguments.run, arguments.clusters, arguments.embedder or "dct")
    if arguments.embedder:
        raise UsageError(f"--embedder {arguments.embedder}: belongs to --clusters; FILE names models of scores")

    from altalign.settings.score import ScoreConfig

    scores = ScoreConfig.load(arguments.scores)
    config = fitted(config_of_run(arguments.run, arguments.set))
    with startup.imports():
        from altalign.pipelines.score import scoring

    return scoring.score(config, scores, str(arguments.scores), flags, anew=arguments.anew)


def _clusters(run: str, k: int, embedder: str) -> int:
    if k < 1:
        raise UsageError(f"--clusters {k}: not a number of clusters; give 1 or more")
    with startup.imports():
        from altalign.pipelines.near import shard_images

    return shard_images.cluster(run, k=k, embedder=embedder)
