"""Files of concepts from titles and WordNet: every entry once, as people write it; hostile files are one line."""

import gzip
from pathlib import Path

import pytest

from altalign.errors import UsageError
from altalign.filters.one_caption import ngrams_of
from tools import concept_entries as entries
from tools.concept_entries import program

TITLES = "page_title\nGramophone\nMercury_(planet)\nMercury_(element)\nNew_York_City\n!!!\nÅngström\nnew york city\n"
INDEX = "  1 This software and database is being provided\ndog n 7 5 @ ~ #m #p %p 7 1 02084071\nhot_dog n 3 2 @ ~ 3 1\n"
TAB = "# name\tdeu\n1-n\tdeu:lemma\tHund\n1-n\tdeu:def\t0\tein Tier\n1-n\tdeu:lemma\tder_beste_Freund\n"


def made(folder: Path) -> list[str]:
    with gzip.open(folder / "titles.gz", "wt", encoding="utf-8") as file:
        file.write(TITLES)
    (folder / "dict").mkdir()
    (folder / "dict" / "index.noun").write_text(INDEX, encoding="utf-8")
    (folder / "wn-data-deu.tab").write_text(TAB, encoding="utf-8")
    return ["--titles", f"{folder}/titles.gz", "--wordnet", f"{folder}/dict", "--wordnet", f"{folder}/wn-data-deu.tab"]


def test_entries_are_titles_and_lemmas_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program([str(tmp_path / "out.txt"), *made(tmp_path)]) == 0
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    titles = ["Gramophone", "Mercury", "New York City", "Ångström"]
    assert lines == [*titles, "dog", "hot dog", "Hund", "der beste Freund"]
    assert "8 entries of 11 lines" in capsys.readouterr().out
    assert len({tuple(ngrams_of(line)) for line in lines}) == len(lines)


def test_titles_of_many_blocks_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_AT_ONCE", 7)
    lines = [f"Thing {number % 23} of {number % 5}" for number in range(200)] + ["a b c d e f g h i"]
    (tmp_path / "titles").write_text("\n".join(lines), encoding="utf-8")
    assert entries.write(str(tmp_path / "out"), [str(tmp_path / "titles")], []) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == list(dict.fromkeys(lines[:-1]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe broken", "not UTF-8"),
        (b"\x1f\x8b cut", "cannot be read"),
        (gzip.compress(b"one\ntwo\n" * 1_000, mtime=0)[:-12], "cannot be read"),
        (b"", "no entry of up to 8 words"),
        (b"!!!\n???\n", "no entry of up to 8 words"),
    ],
)
def test_files_that_are_no_titles_are_one_line(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "titles").write_bytes(data)
    with pytest.raises(UsageError) as error:
        entries.write(str(tmp_path / "out"), [str(tmp_path / "titles")], [])
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_wordnet_and_nothing_at_all_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, said in (
        (["--wordnet", str(tmp_path)], "no WordNet (it has no index.noun)"),
        (["--titles", f"{tmp_path}/nowhere"], "cannot be read (No such file or directory)"),
        ([], "nothing to take entries from"),
    ):
        assert program([str(tmp_path / "out"), *args]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
