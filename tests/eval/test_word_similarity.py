from pathlib import Path

import pytest
import torch

from altalign.errors import UnreadableError
from altalign.eval.word_similarity import WordPair, read_word_pairs, word_similarity
from tests.eval.test_correlation import slow_spearman

VECTORS = {"old": [1.0, 0.0, 2.0], "new": [3.0, 1.0, 0.0], "hard": [0.5, 1.0, 1.0], "run": [0.0, -1.0, 2.0]}
PAIRS = [
    WordPair("old", "new", 1.5, ("adjectives", "hard")),
    WordPair("old", "hard", 4.0, ("adjectives",)),
    WordPair("new", "hard", 2.0, ("adjectives", "hard")),
    WordPair("run", "old", 3.0),
]
AUTHORS = "word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD(SimLex)\n"


def test_correlation_is_that_of_a_plain_loop_of_all_and_of_subsets() -> None:
    asked = []

    def encode(words: list[str]) -> torch.Tensor:
        asked.append(words)
        return torch.tensor([VECTORS[word] for word in words])

    result = word_similarity(PAIRS, encode, batch=3)
    found = {**result.metrics, **result.facts}

    def cosine(pair: WordPair) -> float:
        a, b = VECTORS[pair.first], VECTORS[pair.second]
        lengths = [sum(x * x for x in vector) ** 0.5 for vector in (a, b)]
        return sum(x * y for x, y in zip(a, b, strict=True)) / (lengths[0] * lengths[1])

    def expected(pairs: list[WordPair]) -> float:
        return 100 * slow_spearman([cosine(pair) for pair in pairs], [pair.rating for pair in pairs])

    assert found["spearman"] == pytest.approx(expected(PAIRS))
    assert found["spearman_adjectives"] == pytest.approx(expected(PAIRS[:3]))
    assert found["spearman_hard"] == pytest.approx(expected([PAIRS[0], PAIRS[2]]))
    assert (found["pairs"], found["pairs_adjectives"], found["pairs_hard"]) == (4, 3, 2)
    assert sorted(word for words in asked for word in words) == sorted(VECTORS)
    assert max(map(len, asked)) == 3


def read(folder: Path, text: str) -> list[WordPair]:
    (folder / "simlex.txt").write_text(text)
    return read_word_pairs(str(folder / "simlex.txt"))


def test_the_authors_file_has_subsets(tmp_path: Path) -> None:
    text = AUTHORS + "old\tnew\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41\nbook\ttext\tN\t6.35\t4.9\t4.93\t4\t1.0\t0\t1.2\n"
    assert read(tmp_path, text) == [
        WordPair("old", "new", 1.58, ("adjectives", "concreteness_q2", "hard")),
        WordPair("book", "text", 6.35, ("nouns", "concreteness_q4")),
    ]


def test_three_columns_have_none(tmp_path: Path) -> None:
    text = "# SimLex-999\n# Word 1\tWord 2\tHuman (mean)\nold\tnew\t1.58\nsmart\tclever\t9.2\n"
    assert read(tmp_path, text) == [WordPair("old", "new", 1.58), WordPair("smart", "clever", 9.2)]


@pytest.mark.parametrize("text", ["old new 1.5\n", "old\tnew\tmuch\n", "", "old\tnew\t1\n"])
def test_another_file_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableError, match="simlex") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
