"""`altalign audit RUN --summary FORM`: what a run knows of the training content, in the forms of the law.

`eu`, and `eu-small` for small firms: the template of the European Commission for the public summary of training content
(Article 53(1)(d) of Regulation (EU) 2024/1689; C(2025) 8311 of 5 December 2025), in three sections. `ca`: the twelve
items of California's Civil Code, section 3111(a) (AB 2013). Whoever publishes the model fills in the rest.
"""

from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.audit import forms, rows
from altalign.audit.run_folder import RunFolder
from altalign.data import lineage
from altalign.data.counts import Counts
from altalign.data.reasons import DropReason, Stage
from altalign.filters import image, one_url
from altalign.filters.personal import KINDS
from altalign.machine import interrupts
from altalign.pipelines import card
from altalign.settings.curate import CurateConfig


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
    config, counts, summary = run.config, Counts(rows.counts(run)), run.json("summary.json")
    domains, percent, at_most = _domains(run), FORMS[form].top_percent, FORMS[form].top_at_most
    top = -(-len(domains) * percent // 100)
    is_scraped, fetch = config.fetch.source == "web", run.facts["stages"].get("fetch", {})

    def dropped(stage: Stage, *reasons: str) -> dict[str, int]:
        return {reason: n for reason, n in counts.dropped(stage).items() if reason.startswith(reasons)}

    said = dropped(Stage.FETCH, "opt_out_", DropReason.HTTP_REFUSED, DropReason.URL_BLOCKED)
    facts: dict[str, Any] = {
        "config": config,
        "size": {name: summary[name] for name in ("pairs", "images", "bytes")},
        "inputs": [{"name": each.source, "kind": each.kind, "paths": each.paths} for each in config.input],
        "collected": {"first": fetch.get("started"), "last": fetch.get("finished")} if is_scraped else None,
        "domains": {
            "registered_domains": len(domains),
            "top_share_percent": percent,
            **({"top_at_most": at_most} if at_most else {}),
            "top_domains": [{"domain": name, "bytes": size} for name, size in domains[: min(top, at_most or top)]],
        },
        "rights": {
            "reservations_looked_for": card.looked_for(config),
            "notations_of_reservations": list(card.notations_looked_for(config)),
            "purposes_whose_opposition_was_respected": sorted(
                lineage.of_run(run.folder).respected(config.fetch.purpose)
            ),
            **({"honours_robots_txt": config.fetch.honour_robots} if is_scraped else {}),
            "pairs_left_out_for_opt_outs": said | dropped(Stage.SELECT, "opt_out_"),
        },
        "illegal": dropped(Stage.IMAGE, *_ILLEGAL) | dropped(Stage.SELECT, *_ILLEGAL),
        "personal": [
            {"language": language or "all", "captions": of["captions"], **{kind: card.rate(of[kind]) for kind in KINDS}}
            for language, of in card.shown_rates(summary.get("personal_data", {}).get("rates", {}))
        ],
        "stages": [
            {name: each[name] for name in ("stage", "received", "kept")}
            for each in counts.summary(counts.stages_of_run())
        ],
    }
    return _california(facts) if form == "ca" else _europe(facts)


def _europe(facts: dict[str, Any]) -> dict[str, Any]:
    config: CurateConfig = facts["config"]
    return {
        "form": "Template for the public summary of training content, Article 53(1)(d) AI Act, C(2025) 8311",
        "general": {
            "provider": None,
            "model": None,
            "data_set": config.card.name or None,
            "contact": config.card.contact or None,
            "modalities": ["image", "text"],
            **facts["size"],
            "languages": config.card.languages or None,
            "licence_of_the_compilation": config.card.licence or None,
        },
        "sources": {
            "publicly_available_data_sets": None,
            "licensed_or_private_data_sets": None,
            "inputs": facts["inputs"],
            "crawled_and_scraped": {
                "by_this_run": facts["collected"] is not None,
                **({"crawler": config.fetch.user_agent, "collected": facts["collected"]} if facts["collected"] else {}),
                **facts["domains"],
            },
            "user_data": None,
            "synthetic_data": None,
        },
        "processing": {
            **facts["rights"],
            "pairs_left_out_as_illegal_or_on_request": facts["illegal"],
            "block_lists": len(config.fetch.blocked_domains + config.fetch.blocked_urls + config.image.blocked_hashes),
            "nsfw_classifier": bool(config.image.nsfw.model),
            "other_measures": None,
        },
    }


def _california(facts: dict[str, Any]) -> dict[str, Any]:
    config: CurateConfig = facts["config"]
    method = "pairs filtered by rules on texts and images, and against test images, after ALIGN (arXiv 2102.05918)"
    return {
        "form": "California Civil Code, section 3111(a), as added by AB 2013",
        "sources_or_owners": {"inputs": facts["inputs"], **facts["domains"], "owners": None},
        "purpose": None,
        "data_points": facts["size"],
        "types_of_data_points": {"types": ["images", "texts that describe them, as web pages have them"], "labels": {}},
        "protection": {"licence_of_the_compilation": config.card.licence or None, "images_and_texts": None}
        | facts["rights"],
        "purchased_or_licensed": None,
        "personal_information": {
            "captions_of_a_sample_that_have_it": facts["personal"] or None,
            "captions_dropped_that_have": config.text.drop_personal,
            "in_images": None,
        },
        "aggregate_consumer_information": None,
        "cleaning_and_processing": {"method": method, "stages": facts["stages"], "purpose_of_that": None},
        "time_of_collection": {"of_images": facts["collected"], "is_ongoing": None},
        "first_used": None,
        "synthetic_data": None,
    }


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
