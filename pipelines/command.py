"""`altalign curate …`: its arguments and settings, read before anything heavy is imported."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from altalign import memory, startup, terminal
from altalign.stages import STAGES

if TYPE_CHECKING:
    from altalign.curation import CurateConfig


def main(argv: Sequence[str]) -> int:
    """Run, or continue, a curation."""
    arguments, flags = _parse(argv)

    from altalign.curation import CurateConfig

    config = _fitted(CurateConfig.load(arguments.config, arguments.set))

    with startup.imports():
        from pipelines import curate  # Beam, kernels, codecs: most of a second, which --help and a wrong setting need not wait for

    return curate.curate(config, arguments, flags)


def _fitted(config: "CurateConfig") -> "CurateConfig":
    """The settings with as many workers as there is memory for; said where they are fewer."""
    there = memory.free()
    fitted = memory.fitted(config, there)
    if fitted is not config:
        terminal.stderr().print(f"{there.bytes // memory.MB:,} MB of memory are free ({there.of}), so workers = {fitted.engine.workers}", soft_wrap=True)
    return fitted


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    own, flags = (list(argv[: argv.index("--")]), list(argv[argv.index("--") + 1 :])) if "--" in argv else (list(argv), [])
    parser = argparse.ArgumentParser(
        prog="altalign curate",
        description="Curate image/alt-text pairs into training shards. Run again, it continues where it stopped.",
        epilog="Flags after -- go to Beam.",
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="settings (TOML)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting; repeatable")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--dry-run", action="store_true", help="show files, units, resolved settings and the disk needed; do nothing")
    rerun_help = "run STAGE and what follows anew; without a name, the first stage whose settings or files changed"
    parser.add_argument("--rerun", nargs="?", choices=("", *STAGES), const="", metavar="STAGE", help=rerun_help)
    parser.add_argument("--restart", action="store_true", help="run everything anew")
    return parser.parse_args(list(_joined(own))), flags


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """`--rerun STAGE` as one word, and `--rerun` before anything else as the whole of it: `--rerun mine.toml` names no stage."""
    is_taken = False
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        if is_taken:
            is_taken = False
        elif word == "--rerun":
            is_taken = after in STAGES
            yield f"--rerun={after if is_taken else ''}"
        else:
            yield word
