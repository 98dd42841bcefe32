import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import where
from altalign.filters.where import Compared, Name, WhereError

TYPES = {"a": pa.float32(), "n": pa.int32(), "s": pa.string(), "t": pa.string(), "b": pa.bool_()}
STEPS = [step / 4096 for step in (-4096, -1, 0, 1, 1147, 1148, 4096)]

numbers = st.sampled_from(["0", "0.28", "-1", "1", "3", "0.000244140625", "2e0", "+1.5"])
texts = st.sampled_from(["'en'", "'de'", "''", "'it''s'", "'E%'"])


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["number", "text", "in", "between", "like", "null", "truth", "both"]))
    sign, column = draw(st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])), draw(st.sampled_from(["a", "n"]))
    no = draw(st.sampled_from(["", "NOT "]))
    match kind:
        case "number":
            sides = [column, draw(numbers)]
            return f" {sign} ".join(sides if draw(st.booleans()) else sides[::-1])
        case "text":
            return f"s {sign} {draw(texts)}"
        case "in":
            values = draw(st.lists(texts if no else numbers, min_size=1, max_size=3))
            return f"{'s' if no else column} {no}IN ({', '.join(values)})"
        case "between":
            return f"{column} {no}BETWEEN {draw(numbers)} AND {draw(numbers)}"
        case "like":
            return f"s {no}LIKE {draw(st.sampled_from(['e%', '%e', '_n', '%', 'en']))!r}"
        case "null":
            return f"{draw(st.sampled_from(sorted(TYPES)))} IS {no}NULL"
        case "truth":
            return "b"
        case _:
            return draw(st.sampled_from([f"a {sign} n", f"s {sign} t"]))


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(STEPS)),
        st.one_of(st.none(), st.integers(-2, 3)),
        st.one_of(st.none(), st.sampled_from(["en", "de", "", "it's", "E%"])),
        st.one_of(st.none(), st.sampled_from(["en", "fr"])),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=20,
)


@given(conditions, rows)
@settings(max_examples=300)
def test_a_condition_holds_for_the_rows_that_duckdb_says(text: str, values: list[tuple[object, ...]]) -> None:
    table = pa.Table.from_pylist([dict(zip(TYPES, row, strict=True)) for row in values], pa.schema(TYPES.items()))
    table = table.set_column(0, "a", table["a"].cast(pa.float64()))
    condition = where.parsed(text)
    where.check(condition, TYPES)
    found = where.holds(condition, lambda name: table[name], len(table)).to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", table.append_column("place", pa.array(range(len(table)), pa.int64())))
        said = connection.execute(f"SELECT ({text}) FROM rows ORDER BY place").fetchall()
    assert found == [row[0] for row in said]


@given(conditions)
def test_a_condition_that_is_written_is_parsed_as_the_same(text: str) -> None:
    condition = where.parsed(text)
    assert where.parsed(where.written(condition)) == condition


@pytest.mark.parametrize("name", ["and", "extra.shop id", 'a "b"', "größe", "extra.x", "true"])
def test_a_name_is_written_so_that_it_is_one(name: str) -> None:
    condition = Compared(Name(name), "<", (-1.5e-7,))
    assert where.parsed(where.written(condition)) == condition


@given(st.lists(comparisons(), min_size=1, max_size=5))
@settings(max_examples=50)
def test_conditions_joined_by_and_are_taken_apart_in_order(parts: list[str]) -> None:
    whole = where.conjuncts(where.parsed(" AND ".join(f"({part})" for part in parts)))
    assert whole == [each for part in parts for each in where.conjuncts(where.parsed(part))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not understood at character 1, 'its end'"),
        ("a ==", "not understood at character 3"),
        ("a = 'x", "not understood at character 3"),
        ("__import__('os').system('x')", "not understood at character 11"),
        ("a; DROP TABLE rows", "not understood at character 2"),
        ("a > 0 --", "not understood at character 7"),
        ("(" * 60 + "a > 1" + ")" * 60, "nested more than 50 deep"),
        ("not " * 5_000 + "b", "nested more than 50 deep"),
        ("not " * 900 + "b", "nested too deep"),
        ("a = 1 OR " * 116_509 + "b", "1,048,582 characters, and at most 65,536"),
    ],
)
def test_what_is_no_condition_is_one_line(text: str, said: str) -> None:
    with pytest.raises(WhereError) as error:
        where.parsed(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("similarty > 1", "no column 'similarty' (did you mean similarity?)"),
        ("zzz = 1", "no column 'zzz' (there are: similarity, language)"),
        ("language = 3", "language is text, and 3 is a number; compare like with like"),
        ("similarity IN (1, 'x')", "similarity is a number, and 'x' is text"),
        ("similarity LIKE 'x'", "similarity is a number, and LIKE is of text"),
        ("similarity", "similarity is a number, and True is truth"),
    ],
)
def test_a_condition_on_other_columns_names_those_that_are_there(text: str, said: str) -> None:
    with pytest.raises(WhereError) as error:
        where.check(where.parsed(text), {"similarity": pa.float32(), "language": pa.string()})
    assert str(error.value).startswith(said)
