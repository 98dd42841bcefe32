"""`altalign audit RUN --summary FORM`: what a run knows of the training content, in the forms of the law.

`eu`, and `eu-small` for small firms: the template of the European Commission for the public summary of training content
(Article 53(1)(d) of Regulation (EU) 2024/1689; C(2025) 8311 of 5 December 2025), in three sections. `ca`: the twelve
items of California's Civil Code, section 3111(a) (AB 2013). Whoever publishes the model fills in the rest.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.audit import forms, rows
from altalign.audit.run_folder import RunFolder
from altalign.data import lineage
from altalign.data.counts import Counts
from altalign.data.lineage import Made
from altalign.data.reasons import OPT_OUTS, DropReason, Stage
from altalign.filters import image, one_url
from altalign.filters.personal import KINDS
from altalign.filters.reservations import NOTATIONS
from altalign.machine import interrupts
from altalign.pipelines import card


class Form(NamedTuple):
    """A form: the names of its files, its title, its sections, and which of the largest domains it lists."""

    name: str
    title: str
    sections: dict[str, str]
    top_percent: int
    top_at_most: int | None = None


_EU = Form(
    "training-content",
    "Summary of training content",
    {"general": "1. General information", "sources": "2. Data sources", "processing": "3. Data processing"},
    top_percent=10,
)
FORMS = {
    "eu": _EU,
    "eu-small": _EU._replace(top_percent=5, top_at_most=1_000),  # whichever is less
    "ca": Form(
        "training-data-ca",
        "Documentation of training data",
        {
            "sources_or_owners": "1. Sources or owners",
            "purpose": "2. How the data further the purpose of the system",
            "data_points": "3. Number of data points",
            "types_of_data_points": "4. Types of data points",
            "protection": "5. Copyright, trademark, patent, or public domain",
            "purchased_or_licensed": "6. Purchased or licensed",
            "personal_information": "7. Personal information",
            "aggregate_consumer_information": "8. Aggregate consumer information",
            "cleaning_and_processing": "9. Cleaning, processing and other modification",
            "time_of_collection": "10. Time of collection",
            "first_used": "11. First used in development",
            "synthetic_data": "12. Synthetic data",
        },
        top_percent=10,
    ),
}
_OPT_OUT = (*OPT_OUTS, DropReason.HTTP_REFUSED, DropReason.URL_BLOCKED)
_ILLEGAL = (image.image_blocked.name, image.image_nsfw.name, DropReason.REMOVED)
_BYTES_OF_DOMAINS = """
    with distinct_images as (select min(domain) as domain, min(bytes) as bytes from images group by image_id)
    select domain, coalesce(sum(bytes), 0)::bigint from distinct_images where domain <> ''
    group by domain order by 2 desc, 1
"""


def write(run: RunFolder, form: str, folder: str) -> list[str]:
    """Write a form of `FORMS` as Markdown and as JSON; returns the paths."""
    name, title, sections, *_ = FORMS[form]
    return forms.write(folder, name, title, sections, gathered(run, form))


def gathered(run: RunFolder, form: str) -> dict[str, Any]:
    """All that the run knows, by the sections of a form."""
    config, counts, domains, summary = run.config, Counts(rows.counts(run)), _domains(run), run.json("summary.json")
    name, *_, percent, at_most = FORMS[form]
    top = -(-len(domains) * percent // 100)

    def dropped(stage: Stage, reasons: tuple[str, ...]) -> dict[str, int]:
        return {reason: number for reason, number in counts.dropped(stage).items() if reason in reasons}

    personal = summary.get("personal_data")
    return forms.filled(
        f"{name}.json.jinja",
        config=config,
        summary=summary,
        is_scraped=config.fetch.source == "web",
        fetch=run.facts["stages"].get("fetch", {}),
        domains=domains,
        top_domains=domains[: top if at_most is None else min(top, at_most)],
        top_percent=percent,
        top_at_most=at_most,
        notations=NOTATIONS,
        purposes=list(dict.fromkeys(_purposes(lineage.of_run(run.folder), config.fetch.purpose))),
        looked_for=card.looked_for(config),
        left_out_for_opt_outs=dropped(Stage.FETCH, _OPT_OUT) | dropped_of_select(counts),
        left_out_as_illegal=dropped(Stage.IMAGE, _ILLEGAL) | dropped(Stage.SELECT, _ILLEGAL),
        personal=card.shown_rates(personal["rates"]) if personal else [],
        kinds_of_personal=KINDS,
        stages=counts.summary(counts.stages_of_run()),
    )


def dropped_of_select(counts: Counts) -> dict[str, int]:
    """How many pairs a selection left out for what rights holders say, by reason."""
    return {reason: n for reason, n in counts.dropped(Stage.SELECT).items() if reason.startswith("opt_out:")}


def _purposes(made: Made, purpose: str) -> Iterator[str]:
    """The purpose of a curation, and those that selections of it have respected."""
    for each in made.parents:
        yield from _purposes(each, purpose)
    yield str(made.settings.get("respect") or purpose)


def _domains(run: RunFolder) -> list[tuple[str, int]]:
    """Registered domains of the images in the shards, with the bytes of their images, the largest first."""
    with rows.database() as connection:
        connection.execute("create table images (image_id varchar, domain varchar, bytes bigint)")
        for name in storage.names(run.path("shards"), ".parquet"):
            for group in rows.row_groups(run.path("shards", name), ["image_id", "image_url", "bytes"]):
                interrupts.check()
                found = pa.array(map(one_url.domain_of, group["image_url"].to_pylist()), pa.string())
                insert = "insert into images select image_id, domain, bytes from arrow_rows"
                rows.execute_on(connection, group.append_column("domain", found), insert)
        return rows.rows_of_query(connection, _BYTES_OF_DOMAINS)
