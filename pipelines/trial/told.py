"""A trial as its user has it: a table on the terminal, `trial.json`, a page, and the policy to be approved."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor
from typing import Any

from rich.console import Console
from rich.table import Table

from altalign import __version__, cli, storage
from altalign.pipelines.opening.summary import many
from altalign.pipelines.run.units import Run
from altalign.pipelines.trial import policy, thresholds
from altalign.pipelines.trial.estimates import Estimate
from altalign.pipelines.trial.outcomes import BYTES, SECONDS, SHARD_BYTES, Named
from altalign.pipelines.trial.prediction import CPU, HostClass, Machines, Prediction
from altalign.pipelines.trial.trying import Tried, Wanted, exact
from altalign.reasons import KEPT, Stage
from altalign.terminal import shown
from altalign.trial_page import Amount, Line, Page

FOLDER = "trial"
FILES = ("trial.json", "report.html", "policy.toml")
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def write(tried: Tried, wanted: Wanted, config_path: str) -> None:
    """Write the three files; the policy last."""
    run, predicted = tried.run, tried.prediction
    paths = [run.path(FOLDER, name) for name in FILES]
    counted = exact(run)
    storage.write_json(paths[0], facts(tried, wanted, counted))
    page = _page(tried, counted, paths[1])
    cli.call(cli.TRIAL_PAGE, page)
    if predicted is None:
        storage.delete(paths[2])
        return
    sample = {"images": predicted.sampled[0], "asked_for": wanted.images, "seed": wanted.seed}
    of_text = [{**row, "of": "pairs", **dict.fromkeys(("value", "least", "most"), row["pairs"])} for row in counted]
    for row in of_text:
        del row["pairs"]
    policy.write(paths[2], run, config_path, sample, [*of_text, *_predicted(run, predicted)])


def facts(tried: Tried, wanted: Wanted, counted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of `trial.json`."""
    predicted = tried.prediction
    said: dict[str, Any] = {
        "altalign": __version__,
        "run": tried.run.folder,
        "counted": list(counted),
        "sample": {"asked_for": wanted.images, "seed": wanted.seed},
    }
    if predicted is None or tried.outcomes is None:
        return said
    said["sample"] |= {"images": predicted.sampled[0], "pairs": predicted.sampled[1]}
    said["sample"] |= {"images_asked_for_now": tried.outcomes.asked}
    pool = predicted.pool
    return {
        **said,
        "pool": {"hosts": len(pool.names), "images": int(pool.images.sum()), "pairs": int(pool.pairs.sum())},
        "predicted": list(_predicted(tried.run, predicted, with_times=True)),
        "hosts": [
            {
                **{name: getattr(each, name) for name in ("least", "most", "hosts", "images", "sampled")},
                "images_that_come": _json(each.came),
                "seconds_of_an_image": _json(each.seconds) if each.seconds else None,
            }
            for each in predicted.hosts
        ],
        "cpu_s_of_the_trial": predicted.measured._asdict(),
        "machines": [
            {
                "machines": each.machines,
                "hours": _json(each.hours),
                "longest": each.limit,
                "cost": _json(each.cost) if each.cost else None,
            }
            for each in predicted.machines
        ],
        "currency": tried.run.config.prices.currency,
        "notes": list(_notes(tried)),
    }


def _predicted(run: Run, predicted: Prediction, *, with_times: bool = False) -> Iterator[dict[str, Any]]:
    """Each amount with its interval; of what near-duplicates within the pool take away, nothing is known from below."""
    for name, value in predicted.found.items():
        is_of_times = name.of in (SECONDS, CPU)
        if is_of_times and not with_times:
            continue
        said = _json(value)
        if _rests_on_the_pool(run, name):
            said["least"] = 0
        yield {"stage": name.stage, "reason": name.reason, "of": name.of, **said}


def _rests_on_the_pool(run: Run, name: Named) -> bool:
    is_left = name.reason == KEPT and name.stage in (Stage.DECONTAMINATE.value, "shards")
    return is_left and run.config.dedup.within_pool != "off"


def _json(value: Estimate) -> dict[str, float]:
    """An estimate in whole numbers, where they are large, which the interval has all of."""
    if value.most < 10_000 and not all(amount == int(amount) for amount in value):
        return {name: float(f"{amount:.6g}") for name, amount in value._asdict().items()}
    return {"value": round(value.value), "least": floor(value.least + 1e-6), "most": ceil(value.most - 1e-6)}


# Words ---------------------------------------------------------------------------------------------------------------


def short(value: float) -> str:
    """A number in four digits at most: 9,876, 12.3k, 1.23M."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            scaled = value / (size if unit != "k" else 1e3)
            return f"{scaled:.{max(0, 2 - len(str(int(scaled))) + 1)}f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"


def _interval(value: Estimate) -> str:
    return f"{short(value.least)}–{short(value.most)}" if value.least < value.most else ""


def _amount(value: Estimate) -> Amount:
    return Amount(short(value.value), _interval(value))


def lines(tried: Tried, counted: Sequence[Mapping[str, Any]]) -> list[Line]:
    """A line for each stage and reason, in the order of stages."""
    found = list[Line]()
    for stage in dict.fromkeys(row["stage"] for row in counted):
        rows = [row for row in counted if row["stage"] == stage]
        found.append(Line(stage, "received", Amount(short(sum(row["pairs"] for row in rows))), None))
        for row in rows:
            images = None
            if row["reason"] == KEPT and stage == Stage.JUDGE.value and tried.prediction:
                images = Amount(short(int(tried.prediction.pool.images.sum())))
            found.append(Line(stage, row["reason"], Amount(short(row["pairs"])), images))
    for name, value in tried.prediction.found.items() if tried.prediction else ():
        if name.of == "pairs" and tried.prediction:
            images = tried.prediction.found[Named(name.stage, name.reason, "images")]
            found.append(Line(name.stage, name.reason, _amount(value), _amount(images)))
    return found


def _notes(tried: Tried) -> Iterator[str]:
    """What a reader has to know."""
    config, predicted = tried.run.config, tried.prediction
    if config.dedup.within_pool != "off":
        yield (
            "`dedup.within_pool`: a sample has few pairs of near-duplicates, so what that rule drops is not predicted; "
            "what is left is at most this"
        )
    if config.decontaminate.test_sets:
        yield "`decontaminate`: the map and the clusters were learned from the sample, the run's from all images"
    if predicted and predicted.measured.fetch is None:
        yield "CPU of fetching: not measured, most images were there from an earlier trial"
    if predicted and predicted.measured.text is None:
        yield "CPU of the text stages: not measured, they were done before this trial or elsewhere"
    if predicted and any(name.of == CPU for name in predicted.found):
        yield "CPU: from what the sample took (all of it start-up) to its share of the whole"
    if predicted:
        yield "intervals are of the sampling alone: hosts may answer otherwise another day"


def amounts(predicted: Prediction) -> list[tuple[str, str, str]]:
    """Name, value and interval of bytes, times and CPU."""
    found = list[tuple[str, str, str]]()
    for name, value in predicted.found.items():
        if name.of in (BYTES, SHARD_BYTES):
            gigabytes = Estimate(*(amount / 1e9 for amount in value))
            found.append((f"GB, {name.of.removeprefix('bytes ')}", _digits(gigabytes.value), _range(gigabytes)))
        elif name.of in (SECONDS, CPU):
            hours = Estimate(*(amount / 3_600 for amount in value))
            what = f"CPU hours, {name.stage}" if name.of == CPU else "hours of asking, one at a time"
            found.append((what, _hours(hours.value), _range(hours, _hours)))
    if predicted.measured.text is not None:
        found.append(("CPU hours, text stages (done)", _hours(predicted.measured.text / 3_600), ""))
    return found


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.{3 if value >= 0.01 else 1}g}"


def _range(value: Estimate, said: Callable[[float], str] = _digits) -> str:
    return f"{said(value.least)}–{said(value.most)}" if value.least < value.most else ""


def _hours(value: float) -> str:
    """Hours; less than a tenth in seconds."""
    return _digits(value) if value >= 0.1 else f"{ceil(value * 3_600)} s"


def host_rows(hosts: Sequence[HostClass]) -> list[tuple[str, ...]]:
    """Rows of the table of hosts."""
    return [
        (
            f"{each.least:,}" if each.least == each.most else f"{each.least:,}–{each.most:,}",
            short(each.hosts),
            short(each.images),
            short(each.sampled),
            "{:.0%} ({:.0%}–{:.0%})".format(*(value / each.images for value in each.came)),
            f"{each.seconds.value:.2f} ({each.seconds.least:.2f}–{each.seconds.most:.2f})" if each.seconds else "",
        )
        for each in hosts
    ]


def machine_rows(machines: Sequence[Machines], currency: str) -> list[tuple[str, ...]]:
    """Rows of the table of hours and cost."""
    return [
        (
            f"{each.machines:,}",
            _hours(each.hours.value),
            _range(each.hours, _hours),
            each.limit,
            f"{_digits(each.cost.value)} {currency}" if each.cost else "",
            _range(each.cost) if each.cost else "",
        )
        for each in machines
    ]


# Terminal and page ---------------------------------------------------------------------------------------------------


def show(tried: Tried, out: Console) -> None:
    """Print the tables, in 80 columns."""
    counted = exact(tried.run)
    out.print(_lead(tried), highlight=False, soft_wrap=True)
    of_stages = _table(("stage", "pairs", "95 %", "images", "95 %"))
    for line in lines(tried, counted):
        name = f"{line.stage} {line.reason}" if line.reason in (KEPT, "received") else f"  {line.reason}"
        images = (line.images.value, line.images.interval) if line.images else ("", "")
        style = "green" if line.reason == KEPT else None
        of_stages.add_row(name, line.pairs.value, line.pairs.interval, *images, style=style)
    out.print(of_stages)
    if predicted := tried.prediction:
        of_amounts = _table(("", "in all", "95 %"))
        for row in amounts(predicted):
            of_amounts.add_row(*row)
        out.print(of_amounts)
        of_hosts = _table(("images of a host", "hosts", "images", "sampled", "come", "seconds each"))
        for row in host_rows(predicted.hosts):
            of_hosts.add_row(*row)
        out.print(of_hosts)
        of_machines = _table(("machines", "hours", "95 %", "longest", "cost", "95 %"))
        for row in machine_rows(predicted.machines, shown(tried.run.config.prices.currency)):
            of_machines.add_row(*row)
        out.print(of_machines)
    for note in _notes(tried):
        out.print(note, highlight=False, soft_wrap=True)
    for name in FILES:
        path = tried.run.path(FOLDER, name)
        if storage.exists(path):
            out.print(shown(path), highlight=False, soft_wrap=True)


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    return table


def _lead(tried: Tried) -> str:
    predicted, folder = tried.prediction, shown(tried.run.folder)
    if predicted is None:
        return f"{folder}: no pair passes the text rules, so there is nothing to fetch"
    pool, left = predicted.pool, predicted.found[Named(Stage.DECONTAMINATE.value, KEPT, "pairs")]
    images = int(pool.images.sum())
    drawn = f"{predicted.sampled[0]:,} of {many(images, 'image')} of {many(len(pool.names), 'host')} were tried"
    kept, interval = f"{short(left.value)} pairs will be kept", _interval(left)
    return f"{folder}: {drawn}; " + (f"about {kept} ({interval})" if interval else kept)


def _page(tried: Tried, counted: Sequence[Mapping[str, Any]], path: str) -> Page:
    predicted = tried.prediction
    currency = tried.run.config.prices.currency
    return Page(
        path=path,
        run=tried.run.folder,
        lead=_lead(tried),
        lines=lines(tried, counted),
        hosts=host_rows(predicted.hosts) if predicted else [],
        machines=machine_rows(predicted.machines, currency) if predicted else [],
        notes=[*(_amount_said(row) for row in amounts(predicted)), *_notes(tried)] if predicted else [*_notes(tried)],
        thresholds=thresholds.of_sample(tried.sample) if predicted else [],
    )


def _amount_said(row: tuple[str, str, str]) -> str:
    name, value, interval = row
    return f"{name}: {value}" + (f" ({interval})" if interval else "")
