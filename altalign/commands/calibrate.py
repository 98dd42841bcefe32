"""`altalign calibrate`: arguments, and what it prints and writes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from altalign import storage, terminal
from altalign.commands.arguments import Parser
from altalign.commands.run_arguments import add_overrides, add_test_sets, config_with_test_sets, parted
from altalign.errors import UsageError
from altalign.machine import startup

if TYPE_CHECKING:
    from altalign.pipelines.near.calibration_report import Findings


def calibrate(argv: Sequence[str]) -> int:
    """Measure the search for near-duplicates on a run's own images, and choose its threshold."""
    parser = Parser(
        prog="altalign calibrate",
        description="Measure on a run's own images which copies of test images the search finds and how often it is "
        "wrong, and choose the threshold. OUT can then be named as [decontaminate] calibration. The run is left as it "
        "is.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run whose images are fetched")
    parser.add_argument("out", metavar="OUT", help="folder of the calibration: its files, and report.html")
    add_test_sets(parser, "a test set beside those of the run; repeatable")
    parser.add_argument(
        "--pairs",
        default="",
        metavar="PARQUET",
        help="labelled pairs: columns image_a, image_b, relation (exact, near, or another)",
    )
    parser.add_argument(
        "--images", default="", metavar="PARQUET", help="the images of the pairs: columns image, image_bytes"
    )
    parser.add_argument(
        "--false-positives",
        type=float,
        default=1e-3,
        metavar="N",
        help="test images that a pool image may match by mistake, on average (1e-3)",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=2_000,
        metavar="IMAGES",
        help="images to make copies of (2000)",
    )
    add_overrides(parser, "override a setting of the run; repeatable")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if flags:
        raise UsageError(
            f"-- {flags[0]}: calibrating runs in this process, whichever engine the run was made on, "
            "and has no flags for Beam; leave them out"
        )
    arguments.set.insert(0, 'engine.runner="embedded"')  # the threads belong to this process, too
    config = config_with_test_sets(arguments)

    with startup.imports():
        from altalign.pipelines.near import calibration, calibration_report

    out = arguments.out.rstrip("/") or "/"
    request = calibration.CalibrationRequest(
        out, arguments.pairs, arguments.images, arguments.false_positives, arguments.sample
    )
    console = terminal.stdout()
    calibration_report.show(calibration.calibrate(config, request, write_page), console)
    console.print(
        f'to use it: [decontaminate] calibration = "{terminal.shown(out)}"; '
        f"pairs to look at: {terminal.shown(storage.join(out, calibration_report.PAGE))}",
        soft_wrap=True,
    )
    return 0


def write_page(findings: "Findings", path: str) -> None:
    """Write the page of a calibration."""
    from altalign.audit.report import FOLDER
    from altalign.pages import frame
    from altalign.pipelines.near import calibration_report

    page = frame.rendered(
        FOLDER,
        "calibration.html",
        styles=("page.css", "calibration.css"),
        embedder=findings.calibration.embedder,
        threshold=findings.threshold,
        verdict=calibration_report.verdict(findings),
        sentences=[*calibration_report.sentences(findings)],
        test_sets=findings.counts["test_sets"],
        copied=findings.counts["copied"],
        recall=calibration_report.recall_rows(findings),
        not_covered=findings.not_covered,
        looked_at=findings.looked_at,
        picture=frame.data_uri,
    )
    storage.write_bytes(path, page)
