"""Pages write the same image in many ways, all of which resolve to it."""

from random import Random

from selectolax.lexbor import LexborHTMLParser

from altalign.demo import web
from altalign.demo.web import Element
from tests.altalign.demo.reader import resolved

URL = "http://pictures.example/media/large/red-circle-%C3%A4.jpg?id=1&copy=2"
PAGE = "http://pictures.example/a/b/page-1.html"


def test_every_form_has_as_many_elements_as_it_counts_and_resolves_to_the_image() -> None:
    rng = Random(1)
    alt = 'a "red" circle & a <blue> square'
    for number in range(800):
        element = Element(URL, alt, list(web._WAYS)[number % len(web._WAYS)])
        text = web.html(PAGE, "en", "Title", [element], rng)
        tree = LexborHTMLParser(text)
        elements = tree.tags("img")
        base = tree.css_first("base")
        assert len(elements) == element.times
        for each in elements:
            assert resolved(each.attributes, base.attributes["href"] if base else PAGE) == URL
            assert " ".join(each.attributes["alt"].split()) == alt


def test_a_missing_alt_text_has_no_attribute_and_an_empty_one_has_white_space() -> None:
    rng = Random(2)
    for _ in range(100):
        text = web.html(PAGE, "en", "Title", [Element(URL, None, "plain"), Element(URL, "", "plain")], rng)
        missing, empty = LexborHTMLParser(text).tags("img")
        assert "alt" not in missing.attributes
        assert not (empty.attributes["alt"] or "").strip()


def test_no_bad_reference_resolves() -> None:
    rng = Random(3)
    for reference in web.BAD_REFERENCES:
        text = web.html(PAGE, "en", "Title", [Element(reference, "a red circle", "plain")], rng)
        assert resolved(LexborHTMLParser(text).css_first("img").attributes, PAGE) is None
