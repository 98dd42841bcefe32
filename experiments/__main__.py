"""`python -m experiments NAME`: train what is not finished of an experiment, and write its page to docs/experiments."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from altalign import terminal
from altalign.commands.arguments import Parser
from altalign.errors import AltalignError, UsageError
from altalign.machine.cores import cores
from altalign.train import NUMBERS_VERSION
from experiments import claims, data, page, plan, queue
from experiments.plan import Experiment

# A thread a run, and sums in the order of AVX2 everywhere: processors with wider registers would round otherwise, and
# after some hundred steps recall moves by points.
ARITHMETIC = {
    "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"
}  # fmt: skip

DOCUMENTS = queue.ROOT / "docs" / "experiments"


def main(argv: Sequence[str]) -> int:
    """Train and write, only write, or compare; returns the exit code."""
    os.environ.update(ARITHMETIC)  # before torch is imported
    try:
        sys.stdout.write(f"{_done(argv)}\n")
    except AltalignError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run it again, it continues\n")
        return 130
    return 0


def _done(argv: Sequence[str]) -> str:
    """Do what is asked for; gives the page, or what came of a run that was trained again."""
    parser = Parser(prog="python -m experiments", description="Train the runs of an experiment, and write its page.")
    parser.add_argument("name", metavar="NAME", help="of experiments/NAME.toml")
    parser.add_argument("--page", action="store_true", help="train nothing: write the page of the results so far")
    parser.add_argument("--again", action="store_true", help="train a finished run again, drawn at random")
    parser.add_argument("--scale", type=int, default=1, help="so many times the steps, widths and pairs")
    parser.add_argument("--processes", type=int, default=cores(), help="that train at a time (one a core)")
    arguments = parser.parse_args(argv)
    if min(arguments.scale, arguments.processes) < 1:
        raise UsageError(f"--scale {arguments.scale} --processes {arguments.processes}: give 1 or more")
    data.scale = arguments.scale
    experiment = plan.scaled(queue.read(arguments.name), arguments.scale)
    scale = f"-scale-{arguments.scale}" if arguments.scale > 1 else ""
    folder = queue.ROOT / "runs" / "experiments" / arguments.name / f"version-{NUMBERS_VERSION}{scale}"
    place = (folder if scale else DOCUMENTS) / f"{arguments.name}.json"
    module, absent = f"experiments.{arguments.name}", dict[str, str]()
    if place.is_file():
        queue.remember(folder, experiment, json.loads(place.read_bytes())["runs"])
    if arguments.again:
        return queue.again(module, experiment, folder)
    for pilots_alone in (True, False) if not arguments.page else ():
        absent = queue.run(module, experiment, folder, processes=arguments.processes, pilots_alone=pilots_alone)
        if pilots_alone:
            terminal.stderr().print(
                page.power(experiment, page.counted(experiment, {"runs": queue.results(folder)})), soft_wrap=True
            )
    write_results(place, experiment, folder, absent)
    made = place.with_suffix(".md")
    made.write_text(page.markdown(arguments.name, experiment, json.loads(place.read_bytes())), encoding="utf-8")
    (DOCUMENTS / "claims.md").write_text(claims.markdown(committed()), encoding="utf-8")
    return str(made)


def committed() -> dict[str, tuple[Experiment, page.Results]]:
    """The experiments that have results in docs, and those."""
    places = sorted(DOCUMENTS.glob("*.json"))
    return {place.stem: (queue.read(place.stem), json.loads(place.read_bytes())) for place in places}


def write_results(place: Path, experiment: Experiment, folder: Path, absent: dict[str, str]) -> None:
    """Write what the runs of these settings came to."""
    finished = queue.results(folder)
    planned = list(plan.jobs(experiment))
    done = {job.name for job in planned} - {job.name for job in plan.left(planned, queue.digests(folder))}
    read = {*experiment.measures, "rsum", "cpu_s", "wall_s"}  # by pages, and to compare a run with itself
    lacking = {job.arm: reason for job in planned for name, reason in absent.items() if name in job.sets}
    runs = {
        name: {
            "digest": finished[name]["digest"],
            "code": finished[name]["code"],
            "values": {one: round(value, 6) for one, value in finished[name]["values"].items() if one in read},
            "failed": finished[name]["failed"],
        }
        for name in sorted(done)
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items())  # a run a line
    head = json.dumps({"machine": machine(), "absent": lacking})[:-1]
    place.write_text(f'{head}, "runs": {{\n{lines}\n}}}}\n', encoding="utf-8")


def machine() -> str:
    """Cores and processor, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores of {model or platform.machine()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
