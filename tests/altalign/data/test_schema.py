import re

import pyarrow as pa

from altalign.data import schema

# The contract's columns, in its order.
DROPPED = """key image_id image_url caption page_url source source_key extra preferences stage reason failed kept_key
words images_per_text texts_per_image found_sha256 http_code width height
nsfw_score similarity test_set test_image file offset error"""
SAMPLE = (
    "key image_id image_url caption page_url source source_key extra preferences width height format bytes sha256 "
    "found_sha256 words tar_offset tar_bytes"
)


def test_dropped_rows_have_the_columns_of_the_contract() -> None:
    assert schema.DROPPED.names == DROPPED.split()
    assert schema.DROPPED.field("failed").type == pa.list_(pa.string())


def test_side_cars_have_the_columns_of_the_contract() -> None:
    assert schema.SAMPLE.names == SAMPLE.split()
    assert schema.SIDE_CAR.names == [*SAMPLE.split(), "image"]


def test_the_column_of_images_is_what_parquet_calls_a_file() -> None:
    # LogicalTypes.md, FILE: names and types of its fields, each of which may be null; altalign writes none inline
    fields = {"uri": pa.string(), "offset": pa.int64(), "size": pa.int64()}
    fields |= {"content_type": pa.string(), "checksum": pa.string()}
    kind = schema.SIDE_CAR.field("image").type
    assert {field.name: field.type for field in kind} == fields
    assert all(field.nullable for field in kind)


def test_counts_have_the_columns_of_the_contract() -> None:
    assert schema.COUNTS.names == ["stage", "source", "reason", "rows"]
    assert schema.COUNTS.field("rows").type == pa.int64()


def test_a_candidate_is_what_was_extracted_without_its_verdict() -> None:
    assert [*schema.CANDIDATE.names, "reason", "failed"] == schema.EXTRACTED.names


def test_a_column_of_one_name_has_one_type() -> None:
    types: dict[str, set[pa.DataType]] = {}
    for table in (schema.EXTRACTED, schema.DROPPED, schema.SIDE_CAR, schema.COUNTS, schema.BROKEN):
        for field in table:
            types.setdefault(field.name, set()).add(field.type)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_the_columns_of_candidates_are_found_again_in_samples_and_dropped_rows() -> None:
    kept = set(schema.CANDIDATE.names) - {"image_identity", "page_said"}
    assert kept < set(schema.SAMPLE.names)
    assert kept < set(schema.DROPPED.names)


def test_versions_are_a_number_and_a_name_with_the_unicode_version() -> None:
    assert isinstance(schema.SCHEMA_VERSION, int)
    assert re.fullmatch(r"\d+ \(Unicode 16\.0\)", schema.RULES_VERSION)
