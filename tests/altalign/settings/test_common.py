import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from altalign.errors import UsageError
from altalign.settings.common import ReadBy, Settings, dump, flatten, settings_of, stage_of
from altalign.settings.curate import CurateConfig

CASES = tomllib.loads((Path(__file__).parents[2] / "cases" / "settings.toml").read_text(encoding="utf-8"))["mistake"]
GOOD_INPUT = '\n[input]\npaths = ["a"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str) -> Any:
    Path("mine.toml").write_text(text, encoding="utf-8")
    return CurateConfig.load(Path("mine.toml"), overrides)


def lines_of_error(text: str, *overrides: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load(text, *overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_mistakes_say_what_is_wrong_where_the_value_and_what_to_do(case: dict[str, Any], folder: Path) -> None:
    text = case.get("text", "") + (GOOD_INPUT if case.get("good") else "")
    assert lines_of_error(text, *case.get("set", [])) == case["lines"]


def test_settings_that_are_no_file_say_so(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^absent.toml: no such settings file; give the path of a TOML file$"):
        CurateConfig.load(Path("absent.toml"))
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        CurateConfig.load(folder)
    Path("latin.toml").write_bytes("# caf\xe9\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"^latin.toml: not UTF-8 \(byte 5\); give a settings file"):
        CurateConfig.load(Path("latin.toml"))
    with pytest.raises(UsageError, match=r"^latin.toml/x: cannot be read \(Not a directory\);"):
        CurateConfig.load(Path("latin.toml/x"))


def test_an_integer_of_thousands_of_digits_is_a_mistake_and_no_crash(folder: Path) -> None:
    assert lines_of_error("x = " + "9" * 5000)[0].startswith("mine.toml: not TOML: Exceeds the limit")


def test_a_byte_order_mark_is_no_mistake(folder: Path) -> None:
    assert load("\ufeff" + GOOD_INPUT).input[0].paths == ["a"]


def test_from_values_names_what_it_is_told() -> None:
    with pytest.raises(UsageError, match=r"^here \[text\] words: no such setting"):
        CurateConfig.from_values({"input": {"paths": ["a"]}, "text": {"words": 1}}, where="here")


def test_values_of_the_caller_stay_as_they_are() -> None:
    values = {"input": {"paths": ["a"]}}
    CurateConfig.from_values(values, where="here")
    assert values == {"input": {"paths": ["a"]}}


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("run.folder=runs/two words", "run.folder", "runs/two words"),
        ("run.folder='3'", "run.folder", "3"),
        ("run.folder=2020-01-01", "run.folder", "2020-01-01"),
        ("run.folder=12:00:00", "run.folder", "12:00:00"),
        ("run.folder=s3://bucket/x=y", "run.folder", "s3://bucket/x=y"),
        ("run.folder=a#b", "run.folder", "a#b"),
        ("run.folder='a'\nkeep_work = false", "run.folder", "'a'\nkeep_work = false"),
        ("input.name=", "input[0].name", ""),
        (" text.words_at_least = 2 ", "text.words_at_least", 2),
        ("text.vocabulary_size=1_000", "text.vocabulary_size", 1000),
        ("image.aspect_ratio_below=2", "image.aspect_ratio_below", 2.0),
        ("image.nsfw.model=m.onnx", "image.nsfw.model", "m.onnx"),
        ("input.paths=['a', 'b']", "input[0].paths", ["a", "b"]),
        ("fetch.honour_robots=false", "fetch.honour_robots", False),
        ("fetch.ports=[8080]", "fetch.ports", [8080]),
        ("decontaminate.test_sets=['a']", "decontaminate.test_sets", ["a"]),
    ],
)
@pytest.mark.parametrize("form", ["[input]", "[[input]]"])
def test_overrides_are_toml_and_what_is_none_is_text(
    override: str, name: str, value: Any, form: str, folder: Path
) -> None:
    config = load(f'{form}\npaths = ["z"]\n', override)
    found = dict(flatten(config.model_dump(mode="json")))[name]
    assert (found, type(found)) == (value, type(value))


def test_the_last_override_holds_over_the_file_and_those_before(folder: Path) -> None:
    assert (
        load(
            "[text]\nwords_at_least = 1\n" + GOOD_INPUT, "text.words_at_least=2", "text.words_at_least=4"
        ).text.words_at_least
        == 4
    )


def test_an_override_that_brings_the_input_needs_none_in_the_file(folder: Path) -> None:
    assert load("", "input.paths=['a']").input[0].paths == ["a"]


def test_bytes_of_the_command_line_that_are_no_unicode_are_refused(folder: Path) -> None:
    assert lines_of_error(GOOD_INPUT, "run.folder=a\udcff") == [
        '--set run.folder = "a\udcff": not Unicode; give text in UTF-8'
    ]


def test_settings_are_frozen() -> None:
    config = CurateConfig.from_values({"input": {"paths": ["a"]}}, where="here")
    with pytest.raises(ValidationError, match="frozen"):
        config.text.words_at_least = 4  # type: ignore[attr-defined]


def test_lists_of_two_configs_are_not_the_same_list() -> None:
    one, two = (CurateConfig.from_values({"input": {"paths": ["a"]}}, where="here") for _ in range(2))
    assert one.fetch.ports is not two.fetch.ports  # type: ignore[attr-defined]


class Inner(Settings):
    a: int = 1


class Outer(Settings):
    inner: Inner = Inner()
    several: list[Inner] = []  # noqa: RUF012 (pydantic copies it)
    b: list[int] = []  # noqa: RUF012


def test_flatten_names_every_leaf_once() -> None:
    values = {"inner": {"a": 1}, "several": [{"a": 2}, {"a": 3}], "b": [4, 5]}
    assert dict(flatten(values)) == {"inner.a": 1, "several[0].a": 2, "several[1].a": 3, "b": [4, 5]}
    assert dict(flatten({"several": []})) == {"several": []}


def test_the_mark_nearest_to_a_setting_says_who_reads_it() -> None:
    class Whole(Settings):
        marked: Annotated[Inner, ReadBy("judge")] = Inner()
        plain: Inner = Inner()
        several: Annotated[list[Inner], ReadBy("extract")]

    assert [stage_of(Whole, name) for name in ("marked.a", "plain.a", "several[7].a", "marked")] == [
        "judge",
        None,
        "extract",
        "judge",
    ]


@pytest.mark.parametrize("name", ["nothing", "inner.nothing", "b.nothing", "inner.a.nothing"])
def test_the_stage_of_no_setting_is_an_error(name: str) -> None:
    with pytest.raises(KeyError):
        stage_of(Outer, name)


def test_the_settings_class_of_a_type_is_found() -> None:
    assert [settings_of(t) for t in (Inner, list[Inner], list[str | Inner], int, list[int], None)] == [
        Inner,
        Inner,
        Inner,
        None,
        None,
        None,
    ]


leaves = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
tables = st.recursive(
    st.dictionaries(names, leaves | st.lists(leaves, max_size=3), max_size=4),
    lambda t: st.dictionaries(names, t | st.lists(t, max_size=2), max_size=3),
    max_leaves=6,
)


@given(tables)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_dumped_values_are_read_back_as_they_were(values: dict[str, Any]) -> None:
    assert tomllib.loads(dump(values)) == values
