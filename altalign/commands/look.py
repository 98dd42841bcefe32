"""Verbs on a run's files: `status` with its `--lineage`, `browse`, `search`, `explain`; and `clean`, which deletes."""

import hashlib
import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from altalign import storage, terminal
from altalign.audit.run_folder import RunFolder
from altalign.commands.arguments import Parser, positive
from altalign.data import lineage, unit_marks
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.errors import UsageError
from altalign.machine import startup
from altalign.storage.atomic_change import ADDING
from altalign.terminal import shown

MOST = 8  # reasons, and hosts, to name
_CHECKPOINT = re.compile(r"step-(\d+)")
_SHOWN = 20  # steps of a pair


def explain(argv: Sequence[str]) -> int:
    """Finds a pair and says what happened to it."""
    parser = Parser(
        prog="altalign explain",
        description="Show what happened to a pair in every stage of a run, with the measured values.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    pair = parser.add_mutually_exclusive_group(required=True)
    pair.add_argument("--url", help="the URL of the image, or of its page")
    pair.add_argument("--text", help="the caption, or a part of it")
    pair.add_argument("--key", help="the pair's key, or its image_id: 32 hex digits")
    pair.add_argument("--source-key", metavar="NAME", help="its name in the input: FILE#ROW, FILE#SAMPLE, or the path")
    arguments = parser.parse_args(argv)
    with own_files(arguments.run):
        run = RunFolder.open(arguments.run)
        startup.place_kernels()
        from altalign.audit import explain  # Arrow: a fifth of a second, which --help need not wait for

        named = {name: getattr(arguments, name) for name in ("url", "text", "key", "source_key")}
        text = explain.explain(run, **named)
    sys.stdout.write(f"{text}\n")
    return 0


def browse(argv: Sequence[str]) -> int:
    """Serves a page over everything a run kept and dropped, on 127.0.0.1, until Ctrl-C; or writes a map of it."""
    about = "Look at everything a run kept and dropped, in the browser, and decide. Ctrl-C ends it; nothing is written."
    parser = Parser(prog="altalign browse", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port of 127.0.0.1 (a free one)")
    parser.add_argument("--no-open", action="store_true", help="print the address alone, and open no browser")
    parser.add_argument("--atlas", metavar="FILE", help="write what was kept as a map for Embedding Atlas, and end")
    parser.add_argument("--with", dest="score", default="", metavar="NAME", help="the embedding to map by, of several")
    parser.add_argument("--sample", type=int, metavar="N", help="map N random pairs (200000, or all where fewer)")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.port < 65_536:
        raise UsageError(f"--port {arguments.port}: no port; give one up to 65535, or none")
    if arguments.atlas is None and (arguments.score or arguments.sample is not None):
        raise UsageError("--with, --sample: belong to --atlas; give it too")
    startup.place_kernels()
    if arguments.atlas is not None:
        return _map(arguments.run, arguments.score, arguments.atlas, arguments.sample)
    import webbrowser

    from altalign.browse import server  # Starlette, uvicorn: what other verbs need not wait for

    with (
        suppress(KeyboardInterrupt),
        own_files(arguments.run),
        server.serving(arguments.run, arguments.port) as address,
    ):
        terminal.stderr().print("Ctrl-C ends it", soft_wrap=True)
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if not arguments.no_open:
            webbrowser.open(address)
        while True:
            time.sleep(3600)
    return 0


def _map(run: str, score: str, path: str, sample: int | None) -> int:
    """Write the map, and print the command that opens it."""
    from altalign.browse import atlas  # Arrow, kernels: what other verbs need not wait for

    with own_files(run):
        pairs, of = atlas.write(run, score, path, **({} if sample is None else {"sample": sample}))
    terminal.stderr().print(f"{pairs:,} of {of:,} pairs", soft_wrap=True)
    columns = " ".join(f"--{option} {column}" for option, column in atlas.OPTIONS.items())
    sys.stdout.write(f"embedding-atlas {shlex.quote(path)} {columns}\n")
    return 0


def search(argv: Sequence[str]) -> int:
    """Finds pairs whose images are near to texts and pictures."""
    parser = Parser(
        prog="altalign search",
        description="Find the pairs of a run, kept and dropped, whose images are nearest to a text, a picture or both. "
        "Where no score of kind embedding takes text, captions are searched for its words.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--text", default="", help="what images are to show")
    parser.add_argument("--image", metavar="FILE", help="what they are to be like: a file, or a URL of the run")
    parser.add_argument("--key", default="", help="the pair whose image they are to be like")
    parser.add_argument("--minus", metavar="TEXT", default="", help="what they are to be unlike")
    parser.add_argument("--where", metavar="CONDITION", default="", help="of these pairs, as `select` takes it")
    parser.add_argument("-k", type=positive, default=20, metavar="N", help="how many pairs at most (20)")
    parser.add_argument("--with", dest="embedding", metavar="NAME", default="", help="the score of kind embedding")
    arguments = vars(parser.parse_args(argv))
    startup.place_kernels()
    from altalign.browse.asking import Asking

    folder = arguments.pop("run")
    with own_files(folder):
        asking, out = Asking(RunFolder.open(folder)), terminal.stdout()
        found = asking.search(**arguments, with_pictures=False)
    for note in asking.notes:
        terminal.stderr().print(note, highlight=False, soft_wrap=True)
    for row in found.to_pylist():
        value, *_ = row.values()
        out.print(f"{value:6.3f}  {row['key']}  {row['reason']}", highlight=False, soft_wrap=True)
        caption = f"        {shown(row['caption'] or '')}"
        out.print(caption, highlight=False, overflow="ellipsis", no_wrap=True, soft_wrap=not out.is_terminal)
    if not len(found):
        out.print("no pair is like that", highlight=False)
    return 0


def clean(argv: Sequence[str]) -> int:
    """Deletes RUN/work of a finished run. Shards, dropped rows, tables and counts stay."""
    about = "Delete the intermediate files of a finished run (RUN/work). A rerun then starts from the input again."
    parser = Parser(prog="altalign clean", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("--unfinished", action="store_true", help="also in an unfinished run, which then starts over")
    arguments = parser.parse_args(argv)
    with own_files(arguments.run):
        run = RunFolder.open(arguments.run)
    with storage.locked(run.folder):
        if not run.is_finished and not arguments.unfinished:
            raise UsageError(
                f"{run.folder}: not finished, and without work/ it would start over; finish it, or give --unfinished"
            )
        storage.delete_units([run.path("work")])
        storage.delete(run.path(ADDING))  # of an addition that was killed
    sys.stdout.write(f"{shown(run.folder)}/work deleted\n")
    return 0


def status(argv: Sequence[str]) -> int:
    """Prints the state of every stage, or what a run was made of."""
    about = "Show how far a run is: units, rows, failures and time left, read from its files."
    parser = Parser(prog="altalign status", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a run; for --lineage also of a training, or a checkpoint")
    parser.add_argument("--lineage", action="store_true", help="what the run was made of, or a model was trained on")
    parser.add_argument("--key", default="", help="of a training: every step that had this pair, by its key")
    parser.add_argument("--removed", default="", metavar="RUN", help="of a training: what it saw of a run's removals")
    parser.add_argument("--json", action="store_true", help="with --lineage: print the same as JSON")
    arguments = parser.parse_args(argv)
    if arguments.lineage or arguments.key or arguments.removed:
        return _lineage(arguments.run, arguments.key, arguments.removed, is_json=arguments.json)
    if arguments.json:
        raise UsageError("--json: belongs to --lineage; give it too")
    with own_files(arguments.run):
        _print_status(RunFolder.open(arguments.run))
    return 0


def _print_status(run: RunFolder) -> None:
    from rich.table import Table  # a tenth of a second, which --help need not wait for

    out, process = terminal.stdout(), storage.holder(run.folder)
    state = f"running (process {process})" if process else "finished" if run.is_finished else "not finished"
    out.print(f"{shown(run.folder)}: {state}", soft_wrap=True)
    table = Table("stage", "state")
    for name in ("units", "rows", "time", "left", "tries"):
        table.add_column(name, justify="right")
    for stage, facts in run.facts["stages"].items():
        done = planned = rows = 0  # units of the steps that have begun, and their rows
        for plan in storage.below(run.path("work", stage), "plan/plan.json"):
            of_step = storage.read_json(plan)
            done += len(unit_marks.opened(plan.removesuffix("plan/plan.json") + "marks").found())
            planned, rows = planned + of_step["units"], rows + of_step["rows"]
        state, left = "finished" if facts["finished"] else "begun", ""
        if not facts["finished"]:
            begun = datetime.strptime(facts["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            seconds = (datetime.now(UTC) - begun).total_seconds()
            left = f"{seconds * (planned - done) / done:.0f} s" if done else "unknown"
        units, of_rows = f"{done:,} of {planned:,}" if planned else "", f"{rows:,}" if rows else ""
        table.add_row(stage, state, units, of_rows, f"{facts['seconds']:.1f} s", left, str(facts["attempts"]))
    out.print(table)
    lines, trouble = list[str](), run.json("log", "trouble.json")
    if fetch := run.json("log", "fetch", "progress.json"):
        share = f"{fetch['fetched'] / max(1, fetch['ended']):.1%} fetched, {fetch['bytes'] / 1e6:,.1f} MB"
        lines.append(f"fetch: {fetch['ended']:,} of {fetch['images']:,} images, {share}")
        for what, counts in {"not fetched": fetch["reasons"], "most failures": fetch["hosts"]}.items():
            if most := [f"{shown(name)} {number:,}" for name, number in counts.items()][:MOST]:
                lines.append(f"  {what}: {', '.join(most)}")
    if trouble and not run.is_finished:
        lines.append(f"last failure: {shown(trouble['message'])}")
    if run.is_finished and not process and storage.kind(run.path(ADDING)) == "folder":
        lines.append("an addition to it was cut off: run the same `altalign add` again, which continues it")
    if not run.is_finished and not process:
        lines.append("run the same `altalign curate` again to continue")
    for line in lines:
        out.print(line, soft_wrap=True)


def _lineage(path: str, key: str, removed: str, *, is_json: bool) -> int:
    """Print what a finished run was made of; of a training run or checkpoint, the runs that it was trained on."""
    path = path.rstrip("/") or "/"
    storage.check(path)
    if key and removed:
        raise UsageError("--key and --removed are two questions; ask one after the other")
    if key and not re.fullmatch(r"[0-9a-fA-F]{32}", key):
        raise UsageError(f"--key {key}: not 32 hex digits; `altalign explain` finds the key of a pair")
    if storage.exists(storage.join(path, "manifest.json")) and not _CHECKPOINT.fullmatch(storage.name(path)):
        if key or removed:
            raise UsageError(f"{path}: a run of pairs, not of training; --key and --removed ask of what was trained")
        made = lineage.of_run(path)
        facts, lines = made.to_json(), list(lineage.drawn(made, path))
    else:
        facts, lines = _of_training(path, key.lower(), removed)
    if is_json:
        sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(f"{shown(line)}\n" for line in lines))
    return 0


def _of_training(path: str, key: str, removed: str) -> tuple[dict[str, Any], list[str]]:
    import pyarrow.parquet as pq

    from altalign.commands import train

    with train.loading():
        from altalign.train.data import steps_of_pair
        from altalign.train.run import checkpoints  # torch: seconds, which --help and runs of pairs need not wait for
        from altalign.train.settings.training import TrainConfig

    at = _CHECKPOINT.fullmatch(storage.name(path))
    folder = storage.folder_of(storage.folder_of(path)) if at else path
    settings = storage.join(folder, "config.toml")
    if not storage.exists(settings):
        raise UsageError(f"{path}: no finished run, no training run and no checkpoint; give the folder of one")
    config = TrainConfig.load(settings, [f"run.folder={json.dumps(folder)}"])
    steps = checkpoints.finished(folder)
    last = int(at[1]) if at else max(steps, default=0)
    if last not in steps:
        raise UsageError(f"{path}: no checkpoint of step {last} (there: {', '.join(map(str, steps)) or 'none'})")
    manifests = checkpoints.state_of(checkpoints.place_of(folder, last)).get("manifests", {})
    facts: dict[str, Any] = {"training": folder, "step": last, "manifests": manifests, "runs": {}}
    lines = [f"{folder} step {last}, trained on"]
    for run, digest in manifests.items():  # the SHA-256 of each run's manifest then
        manifest = storage.join(run, "manifest.json")
        if not storage.exists(manifest):
            facts["runs"][run] = None
            lines.append(f"  {run} (manifest {digest[:12]}), which is not there now")
            continue
        made, now = lineage.of_run(run), hashlib.sha256(storage.read_bytes(manifest)).hexdigest()
        facts["runs"][run] = made.to_json()
        lines += [f"  {line}" for line in lineage.drawn(made, run)]
        if now != digest:
            lines.append(f"    it has changed since: its manifest was {digest[:12]}, and is {now[:12]} now")
    facts["data_changes"] = [change for change in steps_of_pair.changes(config) if change["step"] < last]
    for change in facts["data_changes"]:
        were = ", ".join(f"{run} (manifest {digest[:12]})" for run, digest in change["manifests"].items())
        lines.append(f"  until step {change['step']}: {change['pairs']:,} pairs of {were}")
    if key:
        trained = steps_of_pair.Trained(config)
        seen, is_held_out = list(trained.steps(frozenset([key]), last)), bool(trained.held_out(frozenset([key])))
        facts["seen"] = {"key": key, "steps": [[each.step, each.epoch] for each in seen], "held_out": is_held_out}
        few = ", ".join(f"{each.step} (epoch {each.epoch})" for each in seen[:_SHOWN]) + " …" * (len(seen) > _SHOWN)
        why = "it was held out for evaluation" if is_held_out else "it comes later in the order, or is no pair of it"
        lines.append(f"key {key}: in {len(seen):,} of {last:,} steps: {few or why}")
    if removed:
        path = removed if removed.endswith(".parquet") else storage.join(removed, REMOVED_FILE)
        if not storage.exists(path):
            raise UsageError(f"--removed {removed}: nothing was removed there (it has no {REMOVED_FILE})")
        rows = pq.read_table(storage.mappable(path), columns=["kind", "hash"]).to_pylist()
        keys = frozenset(row["hash"] for row in rows if row["kind"] in ("pair", "key") and row["hash"])
        trained, first = steps_of_pair.Trained(config), dict[str, int]()
        for each in trained.steps(keys, last):
            first.setdefault(each.key, each.step)
        by_step = {step: sum(at <= step for at in first.values()) for step in sorted(steps) if step <= last}
        pairs = len(trained.trained_on(keys))
        facts["removed"] = {"pairs": len(keys), "in_order": pairs, "seen_by_step": by_step}
        lines.append(f"removed pairs: {len(keys):,}, of which {pairs:,} are in the order of this training")
        lines += [f"  step {step}: has seen {number:,} of them" for step, number in by_step.items()]
    return facts, lines
