"""`altalign audit RUN --summary eu`: the summary of training content in the AI Office's form, of what a run knows.

The form is the European Commission's template for the public summary of training content (Article 53(1)(d) of
Regulation (EU) 2024/1689, July 2025): general information, list of data sources, aspects of data processing. What a run
does not know is null in the JSON, and "not known to the run" in Markdown: whoever publishes the model fills it in.
"""

import json
from pathlib import Path
from typing import Any

import ada_url
import pyarrow as pa

from altalign import storage
from altalign.audit import rows
from altalign.audit.run_folder import RunFolder
from altalign.data.counts import Counts
from altalign.data.reasons import OPT_OUTS, DropReason, Stage
from altalign.filters import image
from altalign.machine import interrupts
from altalign.pages import markdown

NAMES = ("training-content.md", "training-content.json")
TOP_SHARE = 10  # one host in so many, the largest first; the form asks for the top 10 % of domain names
_SHOWN = 100  # hosts in Markdown
_OPT_OUT = (*OPT_OUTS, DropReason.HTTP_REFUSED, DropReason.URL_BLOCKED)
_ILLEGAL = (image.image_blocked.name, image.image_nsfw.name, DropReason.REMOVED)
_BYTES_OF_HOSTS = """
    with distinct_images as (select min(host) as host, min(bytes) as bytes from images group by image_id)
    select host, coalesce(sum(bytes), 0)::bigint from distinct_images where host <> '' group by host order by 2 desc, 1
"""
_TEMPLATES = Path(__file__).parent / "templates"


def write(run: RunFolder, folder: str) -> list[str]:
    """Write the summary in both forms; returns the paths."""
    summary = gathered(run)
    template = markdown.template(_TEMPLATES / f"{NAMES[0]}.jinja", {"word": _word})
    text = template.render(summary=summary, shown_at_most=_SHOWN, name_of_json=NAMES[1])
    paths = [storage.join(folder, name) for name in NAMES]
    storage.write_bytes(paths[0], text.encode())
    storage.write_bytes(paths[1], (json.dumps(summary, indent=1, ensure_ascii=False) + "\n").encode())
    return paths


def gathered(run: RunFolder) -> dict[str, Any]:
    """All that the run knows, by the sections of the form."""
    counts, hosts = Counts(rows.counts(run)), _hosts(run)

    def dropped(stage: Stage, reasons: tuple[str, ...]) -> dict[str, int]:
        return {reason: number for reason, number in counts.dropped(stage).items() if reason in reasons}

    template = markdown.template(_TEMPLATES / f"{NAMES[1]}.jinja", {})
    text = template.render(
        config=run.config,
        summary=storage.read_json(run.path("summary.json")),
        is_scraped=run.config.fetch.source == "web",
        fetch=run.facts["stages"].get("fetch", {}),
        hosts=hosts,
        top_hosts=-(-len(hosts) // TOP_SHARE),
        top_share_percent=100 // TOP_SHARE,
        left_out_for_opt_outs=dropped(Stage.FETCH, _OPT_OUT),
        left_out_as_illegal=dropped(Stage.IMAGE, _ILLEGAL) | dropped(Stage.SELECT, _ILLEGAL),
    )
    return json.loads(text)


def _hosts(run: RunFolder) -> list[tuple[str, int]]:
    """Hosts of the images in the shards, with the bytes of their images, the largest first."""
    with rows.database() as connection:
        connection.execute("create table images (image_id varchar, host varchar, bytes bigint)")
        for name in storage.names(run.path("shards"), ".parquet"):
            for group in rows.row_groups(run.path("shards", name), ["image_id", "image_url", "bytes"]):
                interrupts.check()
                hosts = pa.array([_host(url or "") for url in group["image_url"].to_pylist()], pa.string())
                insert = "insert into images select image_id, host, bytes from arrow_rows"
                rows.execute_on(connection, group.append_column("host", hosts), insert)
        return rows.rows_of_query(connection, _BYTES_OF_HOSTS)


def _host(url: str) -> str:
    try:
        return ada_url.URL(url).hostname
    except ValueError:
        return ""


def _word(value: object) -> str:
    """A fact in Markdown."""
    if value is None:
        return "**not known to the run**"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value == {} else f"`{str(value).replace('`', '')}`"
