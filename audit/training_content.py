"""`altalign audit RUN --summary eu`: the summary of training content in the AI Office's form, of what a run knows.

The form is the European Commission's template for the public summary of training content (Article 53(1)(d) of
Regulation (EU) 2024/1689, July 2025): general information, list of data sources, aspects of data processing. What a run
does not know is null in the JSON, and "not known to the run" in Markdown: whoever publishes the model fills it in.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import ada_url

from altalign import generations, storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.counts import Counts
from altalign.machine import interrupts
from altalign.reasons import DropReason, Stage
from altalign.schema import COUNTS

NAMES = ("training-content.md", "training-content.json")
TOP_SHARE = 10  # one host in so many, the largest first; the form asks for the top 10 % of domain names
_SHOWN = 100  # hosts in Markdown
_OPT_OUT = (DropReason.HTTP_OPT_OUT, DropReason.HTTP_REFUSED, DropReason.URL_BLOCKED)
_ILLEGAL = (DropReason.IMAGE_BLOCKED, DropReason.IMAGE_NSFW, DropReason.REMOVED)


def write(run: RunFolder, folder: str) -> list[str]:
    """Write the summary in both forms; returns the paths."""
    found = gathered(run)
    paths = [storage.join(folder, name) for name in NAMES]
    storage.write_bytes(paths[0], "".join(f"{line}\n" for line in _markdown(found)).encode())
    storage.write_bytes(paths[1], (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    return paths


def gathered(run: RunFolder) -> dict[str, object]:
    """All that the run knows, by the sections of the form."""
    summary, config = storage.read_json(run.path("summary.json")), run.config
    rows = [
        row for group in run_parquet.row_groups(run.path("counts.parquet"), COUNTS.names) for row in group.to_pylist()
    ]
    counts = Counts.from_json([[row[name] for name in COUNTS.names] for row in rows])
    is_scraped = config.fetch.source == "web"
    hosts = _hosts(run)
    return {
        "form": "Template for the public summary of training content, Article 53(1)(d) AI Act",
        "general": {
            "provider": None,
            "model": None,
            "data_set": config.card.name or None,
            "contact": config.card.contact or None,
            "modalities": ["image", "text"],
            "pairs": summary["pairs"],
            "images": summary["images"],
            "bytes": summary["bytes"],
            "languages": config.card.languages or None,
            "licence_of_the_compilation": config.card.licence or None,
        },
        "sources": {
            "publicly_available_data_sets": None,
            "licensed_or_private_data_sets": None,
            "inputs": [{"name": each.source, "kind": each.kind, "paths": list(each.paths)} for each in config.input],
            "crawled_and_scraped": {
                "by_this_run": is_scraped,
                "crawler": config.fetch.user_agent if is_scraped else None,
                "collected": _collected(run) if is_scraped else None,
                "hosts": len(hosts),
                "top_share_percent": 100 // TOP_SHARE,
                "top_hosts": [{"host": host, "bytes": size} for host, size in hosts[: -(-len(hosts) // TOP_SHARE)]],
            },
            "user_data": None,
            "synthetic_data": None,
        },
        "processing": {
            "honours_opt_out_headers": config.fetch.honour_opt_out if is_scraped else None,
            "honours_robots_txt": config.fetch.honour_robots if is_scraped else None,
            "pairs_left_out_for_opt_outs": _dropped(counts, Stage.FETCH, _OPT_OUT),
            "pairs_left_out_as_illegal_or_on_request": {
                **_dropped(counts, Stage.IMAGE, _ILLEGAL),
                **_dropped(counts, Stage.SELECT, _ILLEGAL),
            },
            "block_lists": len(
                [*config.fetch.blocked_domains, *config.fetch.blocked_urls, *config.image.blocked_hashes]
            ),
            "nsfw_classifier": bool(config.image.nsfw.model),
            "other_measures": None,
        },
    }


def _dropped(counts: Counts, stage: Stage, reasons: tuple[DropReason, ...]) -> dict[str, int]:
    found = counts.dropped(stage)
    return {reason.value: found[reason] for reason in reasons if reason in found}


def _hosts(run: RunFolder) -> list[tuple[str, int]]:
    """Hosts of the images in the shards, with the bytes of their images, the largest first."""
    sizes, before, names = Counter[str](), "", storage.names(run.path("shards"), ".parquet")
    later, counted = _images(run, [name for name in names if generations.of(name) > 1]), set[str]()
    for name in names:
        for rows in run_parquet.row_groups(run.path("shards", name), ["image_id", "image_url", "bytes"]):
            interrupts.check()
            for row in rows.to_pylist():
                image_id = str(row["image_id"])
                is_new = image_id != before and image_id not in counted
                if is_new and (host := _host(str(row["image_url"] or ""))):
                    sizes[host] += int(row["bytes"] or 0)
                before = image_id
                counted |= {image_id} & later
    return sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))


def _images(run: RunFolder, names: Sequence[str]) -> set[str]:
    """The images of these shards, which may be in others too."""
    groups = (rows for name in names for rows in run_parquet.row_groups(run.path("shards", name), ["image_id"]))
    return {str(image_id) for rows in groups for image_id in rows["image_id"].to_pylist()}


def _host(url: str) -> str:
    try:
        return ada_url.URL(url).hostname
    except ValueError:
        return ""


def _collected(run: RunFolder) -> dict[str, str | None]:
    """When images were fetched: by what run.json says of the stage."""
    stage = run.facts["stages"].get("fetch", {})
    return {"first": stage.get("started"), "last": stage.get("finished")}


# Markdown ------------------------------------------------------------------------------------------------------------

_HEADINGS = {"general": "1. General information", "sources": "2. Data sources", "processing": "3. Data processing"}


def _markdown(found: Mapping[str, object]) -> Iterator[str]:
    yield "# Summary of training content"
    yield ""
    yield f"{found['form']}. Written from a run's own records; what they do not have is left open."
    for name, heading in _HEADINGS.items():
        yield from ("", f"## {heading}", "")
        yield from _lines(cast(Mapping[str, object], found[name]))


def _lines(values: Mapping[str, object], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        label = f"{indent}- {name.replace('_', ' ').capitalize()}:"
        if isinstance(value, dict) and value:
            yield label
            yield from _lines(value, f"{indent}  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield label
            yield from (f"{indent}  - {_said(each)}" for each in value[:_SHOWN])
            if len(value) > _SHOWN:
                yield f"{indent}  - and {len(value) - _SHOWN:,} more, in {NAMES[1]}"
        else:
            yield f"{label} {_word(value)}"


def _said(entry: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_word(value)}" for name, value in entry.items())


def _word(value: object) -> str:
    if value is None:
        return "**not known to the run**"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value == {} else f"`{str(value).replace('`', '')}`"
