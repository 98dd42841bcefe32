"""What bounds a step: counts of known operations, what ranks send, and tables that are those of the results."""

import json

import pytest
import torch

from benchmarks import roofline
from benchmarks.roofline import DOCUMENT, MODELS, RESULTS, bounds, filled, row, sent

ROWS = json.loads(RESULTS.read_bytes())


def test_a_product_moves_its_factors_and_its_result_and_a_view_moves_nothing() -> None:
    left, right = torch.zeros(4, 8), torch.zeros(16, 8)
    with roofline._Traffic() as counted:
        product = left @ right.T
        product.relu()
    assert counted.of_products == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert counted.all - counted.of_products == 4 * 2 * (4 * 16)


def test_ranks_send_gradients_twice_and_texts_and_their_gradients_once() -> None:
    """1,000 parameters, 8 GPUs: shares of 2,048 pairs are 4 chunks; a sharded chunk gathers three times and sums."""
    of = {"parameters": 1_000, "width": 10}
    texts = 2 * 4 * 16_384 * 10 * 7 / 8
    assert sent(of, 8) == (pytest.approx(2 * 4_000 * 7 / 8 + texts), pytest.approx(4 * 4 * 4_000 * 7 / 8 + texts))
    assert sent(of, 32)[1] == pytest.approx(3 * 4_000 * 31 / 32 + texts * 8 / 7 * 31 / 32)


def test_the_document_has_the_tables_of_the_results() -> None:
    assert [of["model"] for of in ROWS] == list(MODELS)
    document = DOCUMENT.read_text(encoding="utf-8")
    assert filled(document, ROWS) == document
    assert all(of["model"] in document for of in ROWS)


def test_bounds_are_in_their_order() -> None:
    for of in ROWS:
        by_flops, by_products, by_all = bounds(of)
        assert by_products > by_all
        assert of["goal"] < by_flops


@pytest.mark.trained
def test_the_results_are_what_is_counted() -> None:
    counted, known = row("B3, BERT-Mini"), ROWS[0]
    assert counted.pop("model") == known["model"]
    assert counted == pytest.approx({name: value for name, value in known.items() if name != "model"}, rel=1e-3)
