"""WordPiece of the captions: [CLS] and [SEP] are really there, and the same captions give the same bytes in whatever
process.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.train.data import tokenizer
from altalign.train.data.tokenizer import SPECIAL, CaptionTokenizer
from altalign.train.settings.training import TokenizerSettings

ROOT = Path(__file__).parents[3]
SENTENCE = (
    "red green blue kite kites flying flown over under the a hill hills sea café naïve Ärger STRASSE 日本 語 don't n°5 №7 "  # noqa: E501
    "🙂 e\u0301t\u0301"
)
WORDS = SENTENCE.split()
CAPTIONS = [" ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 9)) for number in range(400)]


def trained(captions: list[str] = CAPTIONS, **given: object) -> CaptionTokenizer:
    return tokenizer.train(
        lambda: [captions[:7], [], captions[7:]], TokenizerSettings(**{"vocabulary_size": 300, **given})
    )


def vocabulary(of: CaptionTokenizer) -> dict[str, int]:
    return json.loads(of.text)["model"]["vocab"]


def test_a_caption_begins_with_cls_and_ends_with_sep() -> None:
    found = trained()
    assert found.pieces("a red kite") == ["[CLS]", "a", "red", "kite", "[SEP]"]
    (ids,) = found.encode(["a red kite"])
    assert (ids[0], ids[-1]) == (2, 3)
    assert found.encode([""]) == [[2, 3]]


def test_the_vocabulary_is_special_tokens_then_letters_then_merges() -> None:
    numbers = vocabulary(trained())
    assert list(numbers.values()) == list(range(len(numbers)))
    pieces = list(numbers)
    assert pieces[:5] == list(SPECIAL)
    letters = [piece for piece in pieces[5:] if len(piece) == 1]
    continuing = [piece for piece in pieces if len(piece) == 3 and piece.startswith("##")]
    assert pieces[5 : 5 + len(letters) + len(continuing)] == sorted(letters) + sorted(continuing)
    assert "日" in letters  # a word of its own
    assert "##日" not in continuing
    assert not {"A", "S"} & set(letters)
    assert trained().vocabulary == len(numbers) <= 300


@pytest.mark.parametrize("size", [16, 60, 100, 150])
def test_there_are_no_more_pieces_than_asked_for(size: int) -> None:
    found = trained(vocabulary_size=size)
    assert found.vocabulary <= size
    assert len(vocabulary(found)) == found.vocabulary
    assert max(max(ids) for ids in found.encode(CAPTIONS)) < found.vocabulary


def test_captions_are_cut_to_the_limit_and_keep_sep() -> None:
    found = trained(tokens_at_most=6)
    assert found.pieces("a red kite over the green hill") == ["[CLS]", "a", "red", "kite", "over", "[SEP]"]
    assert {len(ids) for ids in found.encode(CAPTIONS)} == {6}


def test_case_is_kept_or_not_as_set_and_accents_always_are() -> None:
    captions = ["Café naïve"] * 5
    assert trained(captions).pieces("CAFÉ")[1:-1] == ["café"]
    assert trained(captions, lower_case=False).pieces("Café CAFÉ")[1:-1] == ["Café", "[UNK]"]


def test_words_are_split_into_pieces_and_unknown_letters_are_unknown() -> None:
    captions = ["low lower lowest newer newest wide widest"] * 9
    found = trained(captions, vocabulary_size=60)
    for caption in captions[:1]:
        assert "".join(piece.removeprefix("##") for piece in found.pieces(caption)[1:-1]) == caption.replace(" ", "")
    assert found.pieces("low жж")[1:-1] == ["low", "[UNK]"]


def test_most_frequent_letters_stay_where_there_are_too_many() -> None:
    captions = ["ab ab abc abd", "ab xyz xyz"]  # a, b: 5; of x, y, z, twice each, the first
    pieces = vocabulary(trained(captions, vocabulary_size=16))
    assert [piece for piece in pieces if len(piece) == 1] == ["a", "b"]


def test_captions_that_are_special_tokens_are_text_to_the_trainer() -> None:
    found = trained(["[SEP] ##a pad [PAD] [PAD]"] * 9)
    assert {"sep", "pad", "#", "["} <= set(vocabulary(found))
    pieces = found.pieces("a [PAD] [SEP] ##a")
    assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
    assert not set(SPECIAL) & set(pieces[1:-1])


def test_no_letters_are_refused() -> None:
    with pytest.raises(UsageError, match="no caption to train on has a letter"):
        trained(["", " "])


PROGRAM = """
import sys
from tests.train.data.test_tokenizer import CAPTIONS, trained
print(trained(CAPTIONS if sys.argv[1] == "same" else CAPTIONS[::-1]).digest)
"""


def test_the_same_captions_give_the_same_bytes_in_any_process_order_and_number_of_threads() -> None:
    digests = [trained().digest]
    for seed, threads, order in (("0", "1", "same"), ("12345", "3", "same"), ("77", "2", "reversed")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, order], capture_output=True, text=True, env=environment, check=True
        )
        digests.append(done.stdout.strip())
    assert set(digests) == {digests[0]}


def test_the_golden_vocabulary() -> None:
    pieces = list(vocabulary(trained(["ab abc abd", "ab abc bcd bcd"], vocabulary_size=30)))
    assert pieces == [*SPECIAL, "a", "b", "c", "d", "##a", "##b", "##c", "##d", "ab", "##cd", "bcd", "abc"]


def test_what_is_written_is_read_and_travels(tmp_path: Path) -> None:
    found = trained(tokens_at_most=9)
    path = tmp_path / "tokenizer.json"
    found.write(str(path))
    again = tokenizer.read(str(path), tokens_at_most=9)
    travelled = pickle.loads(pickle.dumps(found))
    assert again.encode(CAPTIONS) == found.encode(CAPTIONS) == travelled.encode(CAPTIONS)
    assert again.digest == found.digest == travelled.digest
    assert Tokenizer.from_file(str(path)).encode("a red kite").tokens == ["[CLS]", "a", "red", "kite", "[SEP]"]


def refused(path: Path, error: type[AltalignError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        tokenizer.read(str(path), tokens_at_most=64)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_tokenizer_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    refused(path, UsageError, "no such tokenizer")
    for data in (b"{}", b"\xff\xfe", b"[1]", b""):
        path.write_bytes(data)
        refused(path, UnreadableError, "no tokenizer.json")
    numbers = {piece: number for number, piece in enumerate((*SPECIAL, "a", "b"))}
    plain = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.save(str(path))
    refused(path, UsageError, r"it makes 'a b' of 'a b', without \[CLS\] first")
    value = json.loads(trained().text)
    value["model"]["vocab"]["[PAD]"], value["model"]["vocab"]["[MASK]"] = 4, 0
    path.write_text(json.dumps(value))
    refused(path, UsageError, r"\[PAD\] is 4, and captions are padded with 0")


def test_words_have_the_pieces_that_the_whole_caption_has() -> None:
    found = trained()
    for caption, whole in zip(CAPTIONS, CaptionTokenizer(found.text, tokens_at_most=99).encode(CAPTIONS), strict=True):
        (words,) = found.encode_words([caption])
        pieces = [piece for word in words for piece in word]
        assert pieces == whole[1:-1]
        assert found.framed(pieces) == found.encode([caption])[0]
    (words,) = found.encode_words(["kites flying over"])
    assert len(words) == 3
