import tomllib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import where
from altalign.filters.where import Condition, WhereError

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "conditions.toml").read_text(encoding="utf-8"))
TYPES = {"a": pa.float64(), "n": pa.int32(), "s": pa.string(), "t": pa.string(), "b": pa.bool_()}
TABLE = pa.Table.from_pylist(CASES["row"], pa.schema(TYPES))

comparisons = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from("an"), st.sampled_from(["=", "<>", "<", ">="]), st.integers(-3, 3)),
    st.sampled_from(
        ["0.28 < a", "n IN (1, 3)", "n NOT BETWEEN 0 AND 1", "s LIKE 'e%'", "t NOT LIKE '_'", "b", "s = t"]
    ),
    st.sampled_from(["a IS NULL", "NOT t IS NULL", "s IN ('it''s', '')", "b = FALSE", "1e-3 != a", "n IS NOT NULL"]),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)


def held(*texts: str, table: pa.Table = TABLE) -> list[list[bool | None]]:
    found = where.holds([where.parsed(text) for text in texts], table)
    return [each.to_pylist() for each in found]


@pytest.mark.parametrize("case", CASES["condition"], ids=lambda case: case["where"])
def test_a_condition_holds_for_the_rows_of_its_case(case: dict[str, Any]) -> None:
    where.check(where.parsed(case["where"]), TYPES)
    assert held(case["where"]) == [[None if each == "null" else each for each in case["holds"]]]


@given(conditions)
@settings(max_examples=100, deadline=None)
def test_a_condition_that_is_written_means_the_same(text: str) -> None:
    condition = where.parsed(text)
    where.check(condition, TYPES)
    assert where.parsed(str(condition)) == condition
    assert held(str(condition)) == held(text)


@given(st.lists(comparisons, min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_conditions_joined_by_and_are_taken_apart_in_order(texts: list[str]) -> None:
    whole = where.parsed(" AND ".join(f"({text})" for text in texts)).parts
    assert whole == [part for text in texts for part in where.parsed(text).parts]


@pytest.mark.parametrize("name", ["extra.shop id", 'a "b"', "größe", "extra.x", "order", "A", "a"])
def test_columns_of_any_name_are_told_apart(name: str) -> None:
    others = {"a": pa.array([9, 9]), "A": pa.array([9, 9])}
    table = pa.table({**others, name: pa.array([1, 2])})
    text = 'a = 9 OR "A" = 9 OR '.replace(name, "n") if name in others else ""
    table = table.append_column("n", pa.array([0, 0]))
    quoted = '"{}"'.format(name.replace('"', '""'))
    assert held(f"{text}{quoted} = 1", table=table)[0][0]
    assert str(where.parsed(f"{quoted} = 1")) in (f"{name} = 1", f"{quoted} = 1")


def test_what_a_part_of_a_condition_is_on() -> None:
    parts = where.parsed("0.28 <= a AND n IS NOT NULL AND (t IS NULL OR s = 'x') AND n < 3").parts
    assert [part.bound for part in parts] == [("a", ">=", 0.28), None, None, ("n", "<", 3.0)]
    assert [part.not_null for part in parts] == ["", "n", "", ""]
    assert [part.columns() for part in parts] == [["a"], ["n"], ["t", "s"], ["n"]]
    assert [part.columns(but_of_nulls=True) for part in parts] == [["a"], [], ["s"], ["n"]]
    assert list(map(str, parts)) == ["a >= 0.28", "n IS NOT NULL", "(t IS NULL) OR (s = 'x')", "n < 3"]


def test_long_conditions_and_no_rows() -> None:
    many = " OR ".join(f"a = {number}" for number in range(3_000))
    assert held(many)[0] == [False, False, None, False, None]
    assert held("a > 1", "b", table=TABLE.slice(0, 0)) == [[], []]
    assert where.holds([], TABLE) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not one condition"),
        ("a ==", "not understood at character 3, '=='"),
        ("größe ==", "not understood at character 7, '=='"),
        ("a = 'x", "not understood at character 5"),
        ("a = NULL", "not understood at character 5, 'NULL'"),
        ("a > 1e", "not understood at character 5, '1e'"),
        ("a > 1e400", "not understood at character 5, '1e400'"),
        ("a > " + "9" * 400, "not understood at character 5, '999"),
        ("s = '\udcff'", "not one condition"),
        ("__import__('os').system('x')", "not understood at character 1"),
        ("lower(s) = 'x'", "not understood at character 1"),
        ("s ILIKE 'x'", "not understood at character 3"),
        ("a + 1 > 2", "not understood at character 3"),
        ("a::int = 2", "not understood at character 2"),
        ("a = (SELECT 1)", "not understood at character 5, '(SELECT 1)'"),
        ("a IN (SELECT 1)", "not understood at character 6"),
        ("EXISTS (SELECT 1)", "not understood at character 1"),
        ("s = current_setting('threads')", "not understood at character 5"),
        ("a > 1 AS x", "not understood at character 1"),
        ("a = ?", "not understood at character 5"),
        ("*", "not understood at character 1"),
        ("a > 1, b", "not one condition"),
        ("a FROM read_csv('x.csv')", "not one condition"),
        ("a > 0) -- ", "not understood at character 6"),
        ("a > 0 WHERE b", "not one condition"),
        ("DISTINCT b", "not one condition"),
        ("b LIMIT 1", "not one condition"),
        ("b UNION SELECT b", "not one condition"),
        ("b; SELECT b", "not one condition"),
        ("a; DROP TABLE rows", "not one condition"),
        ("b; SET threads = 2", "not one condition"),
        ("(" * 2_000 + "a > 1" + ")" * 2_000, "nested too deep"),
        ("not " * 5_000 + "b", "nested too deep"),
        ("not " * 900 + "b", "nested too deep"),
        ("a = 1 OR " * 116_509 + "b", "1,048,582 characters, and at most 65,536"),
    ],
)
def test_what_is_no_condition_is_one_line(text: str, message: str) -> None:
    with pytest.raises(WhereError) as error:
        where.parsed(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("similarty > 1", "no column 'similarty' (there are: similarity, language)"),
        ("zzz = 1", "no column 'zzz' (there are: similarity, language)"),
        ("language = 3", "language is text, and 3 is a number; compare like with like"),
        ("similarity IN (1, 'x')", "similarity is a number, and 'x' is text"),
        ("similarity LIKE 'x'", "LIKE is of text, and similarity is a number"),
        ("language = 'x' OR language", "AND, OR and NOT join conditions, and language is text"),
        ("similarity", "similarity is a number, and a condition is true or false"),
    ],
)
def test_a_condition_on_other_columns_names_those_that_are_there(text: str, message: str) -> None:
    with pytest.raises(WhereError) as error:
        where.check(where.parsed(text), {"similarity": pa.float32(), "language": pa.string()})
    assert str(error.value).startswith(message)


def test_the_database_reaches_no_file_and_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n", encoding="utf-8")
    outside = pa.table({"a": [1]})  # noqa: F841 (of the name that the query has)
    with where._database().cursor() as cursor:  # pyright: ignore[reportPrivateUsage]
        for sql in (f"FROM '{tmp_path}/x.csv'", "FROM outside", "SET enable_external_access = true", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                cursor.execute(sql)


def test_the_reasons_of_one_selection_are_in_words() -> None:
    lineage = {"settings": {"where": "words >= 4 AND s = 'x'"}, "before": []}
    assert where.of_reasons(lineage)["not_where:2"] == "condition s = 'x' does not hold"
    assert where.of_reasons({**lineage, "before": [lineage]}) == {}
    assert where.of_reasons({"settings": {"where": "of another version ("}}) == {}
    assert where.of_reasons(None) == {}
    assert Condition("column", value="a b").written(str) == "a b"
