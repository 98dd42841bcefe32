"""The data-set card: its header is YAML, its numbers are those of the run, and nothing in it is foreign markup."""

import json
import re
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from altalign.cli import main
from altalign.data.counts import Counts
from altalign.data.reasons import WORDS, Stage
from altalign.data.schema import SAMPLE, SIDE_CAR
from altalign.dedup.thresholds import Share
from altalign.filters.personal import KINDS
from altalign.pipelines.card import COLUMNS, CardFacts, croissant, hub_licence, size_category
from altalign.pipelines.card import readme as readme_of
from altalign.settings.curate import CurateConfig
from tests.support.curations import rows_in, tree, write_input


def facts_of(*, pairs: int = 1_234, notes: tuple[str, ...] = (), **sections: Any) -> CardFacts:
    config = CurateConfig.from_values({"input": {"paths": ["secret/*.warc.gz"]}, **sections}, where="here")
    source = config.input[0].source
    kept = {(stage.value, source, "kept"): pairs for stage in Stage}
    counts = (
        Counts({**kept, ("image", source, "image_too_small"): 7, ("fetch", source, "not_in_archive"): 5})
        if pairs
        else Counts()
    )
    return CardFacts(config, counts, {"pairs": pairs, "images": pairs // 2, "bytes": 10 * pairs}, notes, "ab" * 32)


def header(readme: str) -> dict[str, Any]:
    _, head, _ = readme.split("---\n", 2)
    return yaml.safe_load(head)


def tables(readme: str) -> list[list[str]]:
    """Cells of all rows of all tables."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in readme.splitlines()
        if line.startswith("|")
    ]


# What is said ---------------------------------------------------------------------------------------------------------


def test_every_column_and_every_reason_has_words() -> None:
    assert list(COLUMNS) == SIDE_CAR.names
    assert all(words.in_card and not words.in_card.endswith(".") for words in WORDS.values())


def test_the_header_is_yaml_of_what_the_settings_say() -> None:
    said = header(
        readme_of(
            facts_of(
                card={"name": 'Cats: "all" of them', "licence": "CC-BY-4.0", "languages": ["en", "pt-BR", "pt-PT"]}
            )
        )
    )
    assert said["pretty_name"] == 'Cats: "all" of them'
    assert said["license"] == "cc-by-4.0"
    assert said["language"] == ["en", "pt"]
    assert said["language_bcp47"] == ["en", "pt-BR", "pt-PT"]
    assert said["size_categories"] == ["1K<n<10K"]
    assert said["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "shards/*.tar"}]}]
    (info,) = said["dataset_info"]
    assert [each["name"] for each in info["features"]] == ["jpg", "txt", "json", "__key__", "__url__"]
    assert [each["name"] for each in info["features"][2]["struct"]] == SAMPLE.names
    kept = header(readme_of(facts_of(input={"kind": "table", "paths": ["a.csv"], "keep_columns": ["id"]})))
    assert kept["dataset_info"] == said["dataset_info"]  # `extra` is text, whatever was kept


@pytest.mark.parametrize(
    ("licence", "on_the_hub"),
    [
        ("", "unknown"),
        ("unknown", "unknown"),
        ("CC0-1.0", "cc0-1.0"),
        ("ODC-By-1.0", "odc-by"),
        ("other", "other"),
        ("LicenseRef-Ours", "other"),
        ("no", "other"),
    ],
)
def test_a_licence_is_named_as_the_hub_names_it(licence: str, on_the_hub: str) -> None:
    assert hub_licence(licence) == on_the_hub
    readme = readme_of(facts_of(card={"licence": licence}))
    assert header(readme)["license"] == on_the_hub
    assert header(readme).get("license_name") == (licence if on_the_hub == "other" and licence != "other" else None)
    assert ("The licence is unknown" in readme) == (on_the_hub == "unknown")
    assert croissant(facts_of(card={"licence": licence})).get("license", "") == licence


@pytest.mark.parametrize(
    ("pairs", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1_000, "1K<n<10K"), (10**8 - 1, "10M<n<100M"), (10**9, "1B<n<10B"), (10**12, "n>1T")],
)
def test_size_categories_are_those_of_the_hub(pairs: int, name: str) -> None:
    assert size_category(pairs) == name


def test_thresholds_stand_beside_those_of_the_paper() -> None:
    rows = {
        row[3]: row
        for row in tables(readme_of(facts_of(text={"words_at_least": 5}, image={"aspect_ratio_below": 2.5})))
        if len(row) == 5
    }
    assert rows["`text_too_short`"][1:] == ["5", "3", "`text_too_short`", "0"]
    assert rows["`image_too_elongated`"][1:] == ["2.5", "3", "`image_too_elongated`", "0"]
    assert rows["`image_too_small`"][1:] == ["200", "200", "`image_too_small`", "7"]
    assert rows["`not_in_archive`"][1:] == ["", "ours", "`not_in_archive`", "5"]
    assert not {"`image_nsfw`", "`near_duplicate_of_test_image`", "`http_timeout`"} & rows.keys()


def test_rules_that_are_on_are_named_and_what_is_off_is_a_limit() -> None:
    off = readme_of(facts_of(notes=("NSFW: off ([image.nsfw] model is not set)", "39 clusters instead of 4,096")))
    assert "No classifier has looked for pornographic images." in off
    assert "No test set was kept out" in off
    assert "NSFW: off" not in off
    assert "- 39 clusters instead of 4,096\n" in off
    found = facts_of(
        image={"nsfw": {"model": "m.onnx"}},
        decontaminate={"test_sets": ["t"]},
        fetch={"source": "web"},
        dedup={"within_pool": "keep_one_image"},
    )
    found.summary["near_duplicates"] = {"similarity_above": 0.5}  # type: ignore[index]
    on = readme_of(found)
    rows = {row[3]: row for row in tables(on) if len(row) == 5}
    assert rows["`near_duplicate_of_test_image`"][1:3] == ["0.5", "0.975"]
    assert rows["`image_nsfw`"][1:3] == ["0.5", "no number"]
    assert rows["`http_too_large`"][1:3] == ["20,000,000", "ours"]
    assert "where reservations and robots.txt were respected" in on
    assert not re.search("No classifier|No test set|Near-duplicates inside the data stay", on)


def test_both_cards_say_where_reservations_were_looked_for_and_what_they_cost() -> None:
    found = facts_of(fetch={"source": "web", "purpose": "search"})
    counts = {(stage.value, "warc", "kept"): 9 for stage in Stage}
    counts |= {("fetch", "warc", "opt_out_tdmrep"): 3, ("select", "warc", "opt_out_iptc"): 4}
    found = found._replace(counts=Counts(counts))
    words = (
        "was looked for in marks inside image files (IPTC/PLUS, C2PA), headers and meta elements of archived pages, "
        "robots.txt and tdmrep.json of archives, headers of images, robots.txt and tdmrep.json on the web. "
        "Pairs left out for it: 7 (purpose of the curation: search)."
    )
    readme = readme_of(found)
    assert words in readme
    assert words in str(croissant(found)["rai:dataCollection"])
    assert {"`opt_out_tdmrep`", "`opt_out_iptc`"} <= {row[3] for row in tables(readme) if len(row) == 5}
    of_table = readme_of(facts_of(input={"kind": "table", "paths": ["a.parquet"]}))
    assert "was looked for in marks inside image files (IPTC/PLUS, C2PA). Pairs left out for it: 0" in of_table


def test_what_programs_are_told_of_rights_names_each_reservation_that_was_respected() -> None:
    found = facts_of(fetch={"source": "web", "purpose": "search"})
    counts = {(stage.value, "warc", "kept"): 9 for stage in Stage}
    counts |= {("fetch", "warc", "opt_out_tdmrep"): 3, ("select", "warc", "opt_out_iptc"): 1_004}
    purpose, *respected = croissant(found._replace(counts=Counts(counts)))["usageInfo"]  # type: ignore[misc]
    assert (purpose["@type"], purpose["termCode"]) == ("DefinedTerm", "search")
    assert "Pairs left out for it: 1,007 (purpose of the curation: search)" in purpose["description"]
    assert purpose["description"].endswith("Nothing said is no permission.")
    assert [(each["termCode"], each["description"]) for each in respected] == [
        ("opt_out_tdmrep", "3 pairs were left out for it."),
        ("opt_out_iptc", "1,004 pairs were left out for it."),
    ]


def test_programs_are_told_how_pairs_were_found_and_dropped_and_what_is_not_known() -> None:
    found = facts_of()
    said = croissant(found)
    assert said["conformsTo"] == ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
    assert str(said["rai:dataCollection"]).startswith("Images and their alt-texts, of warc (web archives (WARC)). ")
    assert said["rai:dataCollectionType"] == ["Web Scraping"]
    assert said["rai:dataCollectionRawData"] == "1,234 candidates of warc (web archives (WARC))."
    steps = said["rai:dataPreprocessingProtocol"]
    assert "fetch: 1,239 pairs received, 1,234 kept; dropped: not_in_archive 5." in steps  # type: ignore[operator]
    assert "judge: 1,234 pairs received, 1,234 kept." in steps  # type: ignore[operator]
    for limit in said["rai:dataLimitations"]:  # type: ignore[attr-defined]
        assert f"\n- {limit}\n" in readme_of(found)
    in_hand = croissant(facts_of(input={"kind": "folder", "paths": ["a"]}))
    assert in_hand["rai:dataCollectionType"] == ["Secondary Data analysis"]


def test_programs_are_told_what_the_run_was_made_of_back_to_curations() -> None:
    curated = croissant(facts_of())
    source = {"@type": "prov:Entity", "prov:label": "warc (web archives (WARC))"}
    assert curated["identifier"] == "ab" * 32
    assert curated["prov:wasGeneratedBy"] == {"@type": "prov:Activity", "prov:label": "altalign curate"}
    assert curated["prov:wasDerivedFrom"] == [source]
    merged = {"operation": "merge", "parents": ["1", "2"], "before": [None, None]}
    lineage = {"operation": "select", "settings": {"where": "words > 3"}, "parents": ["0"], "before": [merged]}
    said = croissant(facts_of()._replace(lineage=lineage))
    assert said["prov:wasGeneratedBy"] == {"@type": "prov:Activity", "prov:label": "altalign select"}
    parent, of_input = said["prov:wasDerivedFrom"]  # type: ignore[misc]
    assert of_input == source
    assert (parent["identifier"], parent["prov:wasGeneratedBy"]["prov:label"]) == ("0", "altalign merge")
    before = parent["prov:wasDerivedFrom"]
    assert [each["identifier"] for each in before] == ["1", "2"]
    assert all(each["prov:wasGeneratedBy"]["prov:label"] == "altalign curate" for each in before)


def test_both_cards_say_how_many_captions_of_a_sample_have_personal_data() -> None:
    found = facts_of()
    assert "Nothing has looked for faces or names, e-mail addresses, phone numbers" in readme_of(found)
    assert "rai:personalSensitiveInformation" not in croissant(found)

    def rates(captions: int, emails: int) -> dict[str, Any]:
        of_kinds = {kind: Share(emails if kind == "email" else 0, captions).to_json() for kind in KINDS}
        return {"captions": captions, **of_kinds}

    by_language = {"": rates(1_000, 4), "en": rates(901, 3), "de": rates(99, 1)}
    found.summary["personal_data"] = {"phone_countries": ["US", "PL"], "rates": by_language}  # type: ignore[index]
    readme = readme_of(found)
    assert "and national ones of US, PL" in readme
    assert "Nothing has looked for faces or names.\n" in readme
    rows = {row[0]: row[1:] for row in tables(readme) if len(row) == 5}
    assert rows["all"] == ["1,000", "0.4 % (0.16–1)", "0 % (0–0.38)", "0 % (0–0.38)"]
    assert rows["en"][0] == "901"
    assert "de" not in rows  # of too few captions
    (words,) = croissant(found)["rai:personalSensitiveInformation"]  # type: ignore[misc]
    assert "Of 1,000 captions" in words
    assert "e-mail address 0.4 % (0.16–1)" in words


def test_whom_to_ask_for_removal_is_said() -> None:
    assert "write to remove@example.org, naming the `key`" in readme_of(
        facts_of(card={"contact": "remove@example.org"})
    )
    assert "No address for requests of removal was given" in readme_of(facts_of())


def test_images_of_several_kinds_are_not_promised_to_readers_of_one() -> None:
    readme = readme_of(facts_of(shards={"portable": False}))
    assert header(readme)["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "shards/*.parquet"}]}
    ]
    assert [each["name"] for each in header(readme)["dataset_info"][0]["features"]] == SIDE_CAR.names
    assert 'load_dataset("webdataset"' not in readme
    assert "webdataset.WebDataset(" in readme


def test_a_run_that_left_nothing_promises_no_files() -> None:
    readme, said = readme_of(facts_of(pairs=0)), croissant(facts_of(pairs=0))
    assert "Nothing is left of the pool" in readme
    assert not {"configs", "dataset_info"} & header(readme).keys()
    assert "```" not in readme
    assert (said["distribution"], said["recordSet"]) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        '"quoted": yes',
        "<script>alert(1)</script>",
        "a|b`c`",
        "[link](javascript:x)",
        "---",
        "{{ 7*7 }}",
        "\u202eright",
        "a\nb: c",
        "🐈 # x",
    ],
)
def test_text_of_settings_is_text_and_no_markup(text: str) -> None:
    found = facts_of(
        input={"paths": ["a"], "name": text},
        notes=(text,),
        **({"card": {"contact": text}} if text.isprintable() else {}),
    )
    readme = readme_of(found)
    said = header(readme)
    assert set(said) == {"pretty_name", "license", "size_categories", "configs", "dataset_info"}
    if text.isprintable():
        assert said["pretty_name"].endswith(text)
    assert "<script" not in readme.split("---\n", 2)[2]
    assert not re.search(r"(?<!\\)\[link\]", readme.split("---\n", 2)[2])
    assert not any(character in readme for character in "\u202e")
    # sources and columns, each with head and rule
    assert [len(row) for row in tables(readme)].count(3) == 2 + 1 + 1 + len(SIDE_CAR) + 1
    assert json.loads(json.dumps(croissant(found)))["name"].isprintable()


def test_nothing_says_where_inputs_lie_or_when_it_was_made() -> None:
    found = facts_of()
    assert not any("secret" in text for text in (readme_of(found), json.dumps(croissant(found))))
    assert readme_of(found) == readme_of(facts_of())


# Of a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carded")
    write_input(folder, rows=200)
    with chdir(folder):
        assert (
            main(["curate", "config.toml", "--set", "card.name=Small pictures", "--set", 'card.languages=["en"]']) == 0
        )
    return folder / "run"


@pytest.mark.runs
def test_both_cards_have_the_numbers_of_the_run(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    readme, said = (run / "README.md").read_text(encoding="utf-8"), json.loads((run / "croissant.json").read_text())
    images = f"{summary['images']:,} distinct images as JPEG, {summary['bytes']:,} bytes"
    assert f"{summary['pairs']:,} pairs of an image and its alt-text, of {images}" in readme
    assert said["description"].startswith(
        f"{summary['pairs']:,} pairs of an image and its alt-text, of {summary['images']:,} distinct images"
    )
    assert said["name"] == header(readme)["pretty_name"] == "Small pictures"
    counted = pq.read_table(run / "counts.parquet").to_pylist()
    rows = tables(readme)
    for stage in summary["stages"]:
        dropped = sum(stage["dropped"].values())
        assert [stage["stage"], *(f"{number:,}" for number in (stage["received"], dropped, stage["kept"]))] in [
            row[:4] for row in rows
        ]
        for reason, number in stage["dropped"].items():
            (row,) = [
                row
                for row in rows
                if len(row) == 5 and row[3] == f"`{reason}`" and row[0].startswith(f"{stage['stage']}: ")
            ]
            assert row[4] == f"{number:,}"
    for row in counted:
        if (row["stage"], row["reason"]) == ("decontaminate", "kept"):
            assert [row["source"], "a table", f"{row['rows']:,}"] in rows


@pytest.mark.runs
def test_no_caption_and_no_url_of_the_pool_is_in_a_card(run: Path) -> None:
    said = (run / "README.md").read_text(encoding="utf-8") + (run / "croissant.json").read_text()
    rows = rows_in(run / "shards")
    assert rows
    assert not [
        row
        for row in rows
        if row["caption"] in said or (row["image_url"] and row["image_url"] in said) or row["key"] in said
    ]


@pytest.mark.runs
def test_another_card_is_another_write_and_the_same_shards(run: Path) -> None:
    before = tree(run)
    again = [
        "curate",
        "config.toml",
        "--set",
        "card.name=Small pictures",
        "--set",
        'card.languages=["en"]',
        "--set",
        "card.licence=CC0-1.0",
    ]
    with chdir(run.parent):
        assert main(again) == 2
        assert main([*again, "--rerun"]) == 0
    after = tree(run)
    assert {name for name in after if after[name] != before.get(name)} == {
        "README.md",
        "croissant.json",
        "config.toml",
        "manifest.json",
    }
    assert before.keys() == after.keys()
