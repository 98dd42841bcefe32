"""The browse page as a reader has it: in a real browser, on the real server and a real small run."""

import io
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from altalign.browse.server import serving
from tests import made_once
from tests.pipelines import score_models
from tests.support.chromium import WIDTHS, Tab, browser
from tests.support.curations import altalign, write_input

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect
MARKUP, TURNED, SCRIPT = "<img src=x onerror=alert(1)> a boat", "the \u202egnp.exe of a boat", "javascript:alert(2)"
LINK = "https://img.example/x.png"
FILE = "<img src=x onerror=alert(3)>.png"
SCORES = """
[[score]]
name = "look"
kind = "embedding"

[[score]]
name = "clip"
kind = "embedding"
model = "onnx:{}"
"""
SHOWN = "#grid[aria-busy=false] .card"


@dataclass(frozen=True)
class Served:
    """The run's page, and the server behind it."""

    url: str
    chromium: Any

    def ask(self, path: str, body: object = None) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        url = self.url.replace("/?", f"{path}?")
        with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as answer:
            return json.load(answer)

    def rows(self, first: int = 0, count: int = 60, sort: str = "", **parts: object) -> list[dict[str, Any]]:
        return self.ask("/api/rows", {"filter": parts, "sort": sort, "first": first, "count": count})["rows"]

    def nearest(self, *terms: Mapping[str, object], **asked: object) -> list[dict[str, Any]]:
        return self.ask("/api/rows", {"search": {"terms": list(terms)}, **asked})["rows"]

    def count(self, **parts: object) -> int:
        return self.ask("/api/count", {"filter": parts})["pairs"]

    def total(self, **parts: object) -> re.Pattern[str]:
        return re.compile(rf"^{self.count(**parts):,} pairs? of ")

    @contextmanager
    def opened(self, width: int = 1440, height: int = 900, **context: Any) -> Iterator[Tab]:
        """The page, once it shows cards; fails if it complained or asked anybody else."""
        context |= {"viewport": {"width": width, "height": height}, "reduced_motion": "reduce"}
        within = self.chromium.new_context(**context)
        tab = Tab(within.new_page())
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.on("console", lambda message: tab.complaints.append(message.text))
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.page.on("dialog", lambda dialog: (tab.complaints.append(dialog.message), dialog.dismiss()))
        tab.page.goto(self.url)
        tab.page.wait_for_selector(f"{SHOWN} .caption")
        yield tab
        own = self.url.partition("?")[0]
        assert tab.complaints == []
        assert [url for url in tab.requests if not url.startswith((own, "data:", f"blob:{own}"))] == []
        within.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def make(folder: Path) -> None:
        config = write_input(folder)
        with (folder / "text" / "some.csv").open("a", encoding="utf-8") as table:
            table.writelines(f"{url},{text}\n" for url in (SCRIPT, LINK) for text in (MARKUP, TURNED))
        done = altalign(folder, "curate", config.name, "--set", "engine.workers=1")
        assert done.returncode == 0, done.stderr
        score_models.write(folder / "clip")
        (folder / "scores.toml").write_text(SCORES.format(folder / "clip"), encoding="utf-8")
        done = altalign(folder, "score", "run", "--with", "scores.toml")
        assert done.returncode == 0, done.stderr

    folder = made_once.made_once("browsed", tmp_path_factory, make)
    with serving(str(folder / "run")) as url, browser() as chromium:
        yield Served(url, chromium)


@pytest.fixture(scope="module")
def without_texts(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same run, whose embeddings take no text."""
    folder = tmp_path_factory.mktemp("without") / "run"
    shutil.copytree(served.ask("/api/run")["folder"], folder, ignore=shutil.ignore_patterns("clip"))
    with serving(str(folder)) as url:
        yield Served(url, served.chromium)


@pytest.fixture(scope="module")
def picture() -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(file, "PNG")
    return file.getvalue()


def facet(tab: Tab, name: str) -> Any:
    return tab.page.locator(f"#facets > details[data-name={name}]")


def card(tab: Tab, at: int) -> Any:
    return tab.page.locator(f"#cell-{at}")


def enter(tab: Tab, text: str, label: str = "Search") -> None:
    tab.page.get_by_label(label, exact=True).fill(text)
    tab.page.get_by_label(label, exact=True).press("Enter")


def chips(tab: Tab, *texts: str) -> None:
    expect(tab.page.locator("#chips .chip")).to_have_text([f"{text} × (take off)" for text in texts])


def found(tab: Tab, rows: list[dict[str, Any]], value: str = "cosine {:.3f}") -> None:
    """The grid has these rows in this order."""
    for at, row in enumerate(rows[:9]):
        expect(card(tab, at).locator("[data-key]")).to_have_attribute("data-key", row["key"])
        expect(card(tab, at).locator(".near")).to_have_text(value.format(row["cosine"]))


def give(tab: Tab, name: str, data: bytes, to: str) -> None:
    """A file that comes by an event, as a drop or a paste."""
    tab.page.evaluate(
        """([name, data, to]) => {
          const files = new DataTransfer();
          files.items.add(new File([Uint8Array.from(data)], name, {type: "image/png"}));
          const given = {bubbles: true, cancelable: true, dataTransfer: files, clipboardData: files};
          const event = to === "paste" ? new ClipboardEvent(to, given) : new DragEvent(to, given);
          document.querySelector("#grid").dispatchEvent(event);
        }""",
        [name, list(data), to],
    )


@pytest.mark.everyday
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_in_silence_and_fits(served: Served, picture: bytes, width: int, scheme: str) -> None:
    with served.opened(width, color_scheme=scheme) as tab:
        expect(card(tab, 1).locator(".caption")).to_have_text(served.rows()[1]["caption"])
        expect(tab.page.locator("#total")).to_have_text(served.total())
        fits = []
        for name in (each["name"] for each in served.ask("/api/run")["facets"]):
            facet(tab, name).evaluate("(each) => { each.open = true }")
            expect(facet(tab, name).locator(".sql")).to_have_count(1)
        toggle = ["Find", "Find"] if width < 1000 else []
        for name in (*toggle, "What if", "Decide", "Look"):
            fits.append((tab.overflow(), tab.outside()))
            tab.page.get_by_role("button", name=name, exact=True).click()
        card(tab, 0).locator(".caption").click()
        expect(tab.page.locator("#pane .steps")).to_be_visible()
        fits.append((tab.overflow(), tab.outside()))
        tab.page.locator("#pane-close").click()
        if toggle:
            tab.page.get_by_role("button", name="Find", exact=True).click()
        enter(tab, "red dog " * 30)
        tab.page.locator("#picture-file").set_input_files({"name": 90 * "x", "mimeType": "", "buffer": picture})
        expect(tab.page.locator("#chips .chip")).to_have_count(2)
        expect(tab.page.locator("#grid[aria-busy=false] .near").first).to_be_visible()
        fits.append((tab.overflow(), tab.outside()))
        assert fits == [(0, [])] * len(fits)


def test_a_choice_filters_and_its_counts_are_the_servers(served: Served) -> None:
    with served.opened() as tab:
        (first, pairs), (second, fewer) = served.ask("/api/facet", {"filter": {}, "name": "reason"})["values"][:2]
        expect(facet(tab, "reason").locator(".choice").nth(1)).to_have_text(f"{second}{fewer:,}")
        choice = facet(tab, "reason").get_by_role("checkbox", name=f"{first} {pairs:,}", exact=True)
        choice.press("Space")
        chosen = {"values": {"reason": [first]}}
        assert served.count(**chosen) == pairs
        expect(tab.page.locator("#total")).to_have_text(served.total(**chosen))
        expect(tab.page.locator(f"{SHOWN} .mark").first).to_contain_text(first)
        of_stages = served.ask("/api/facet", {"filter": chosen, "name": "stage"})["values"]
        expect(facet(tab, "stage").locator(".choice")).to_have_text([f"{name}{n:,}" for name, n in of_stages])
        expect(choice).to_be_focused()
        tab.page.reload()
        expect(tab.page.locator("#chips .chip")).to_contain_text(first)
        expect(tab.page.locator("#total")).to_have_text(served.total(**chosen))
        tab.page.go_back()
        expect(tab.page.locator("#chips .chip")).to_have_count(0)
        expect(tab.page.locator("#total")).to_have_text(served.total())


def test_two_browsers_at_once_see_what_each_asks_for(served: Served) -> None:
    with served.opened() as one, served.opened(1024) as other:
        one.page.get_by_label("Caption has").fill("a blue")
        other.page.get_by_label("Caption has").fill("red")
        for tab, text in ((one, "a blue"), (other, "red")):
            expect(tab.page.locator("#total")).to_have_text(served.total(text=text))


def test_words_and_ranges_find_pairs_in_an_order(served: Served) -> None:
    with served.opened() as tab:
        tab.page.get_by_label("Caption has").fill("RED boat")
        expect(tab.page.locator("#total")).to_have_text(served.total(text="RED boat"))
        facet(tab, "words").locator("summary").first.click()
        tab.page.get_by_label("Words, from").fill("5")
        tab.page.get_by_label("Words, from").press("Enter")
        found = {"text": "RED boat", "ranges": {"words": [5, None]}}
        expect(tab.page.locator("#total")).to_have_text(served.total(**found))
        tab.page.get_by_label("Sort").select_option("-words")
        rows = served.rows(sort="-words", **found)
        assert "red boat" in rows[0]["caption"]
        expect(card(tab, 0).locator(".caption")).to_have_text(rows[0]["caption"])
        tab.page.get_by_role("button", name="Clear").click()
        expect(tab.page.locator("#total")).to_have_text(served.total())


def test_a_long_list_scrolls_with_few_cards(served: Served) -> None:
    with served.opened(390, 600) as tab:
        total = served.count()
        tab.page.locator("#grid").evaluate("(grid) => { grid.scrollTop = grid.scrollHeight / 2 }")
        expect(card(tab, 0)).to_have_count(0)
        expect(tab.page.locator("#grid .card:not(:has(.caption))")).to_have_count(0)
        at = int(tab.page.locator("#grid .card").first.get_attribute("data-at"))
        assert at > total / 3
        expect(card(tab, at).locator(".caption")).to_have_text(served.rows(at, 1)[0]["caption"] or "no caption")
        tab.page.locator("#grid").press("End")
        expect(card(tab, total - 1).locator(".about")).to_be_in_viewport()
        assert tab.page.locator("#grid .card").count() < 40


def test_the_keyboard_alone_is_enough(served: Served) -> None:
    with served.opened() as tab:
        press = tab.page.keyboard.press
        for key in ("Tab", "Enter", "ArrowRight", "ArrowDown", "Space"):  # first, the button that skips to the pairs
            press(key)
        at = int(tab.page.locator("#grid").get_attribute("aria-colcount")) + 1
        expect(tab.page.locator("#grid")).to_have_attribute("aria-activedescendant", f"cell-{at}")
        expect(card(tab, at)).to_have_attribute("aria-selected", "true")
        press("Enter")
        row = served.rows(at, 1)[0]
        expect(tab.page.locator("#pane-title")).to_be_focused()
        expect(tab.page.locator("#pane .copyable")).to_contain_text(row["key"])
        expect(tab.page.locator("#pane .steps li")).to_have_count(len(served.ask(f"/api/pair/{row['n']}")["steps"]))
        press("Tab")
        press("Space")
        expect(card(tab, at)).to_have_attribute("aria-selected", "false")
        press("Escape")
        expect(tab.page.locator("#pane")).to_be_hidden()
        expect(tab.page.locator("#grid")).to_be_focused()


def test_pictures_are_blurred_until_one_asks(served: Served) -> None:
    with served.opened() as tab:
        facet(tab, "stage").get_by_role("checkbox", name="kept").check()
        images = tab.page.locator(f"{SHOWN} img")
        expect(images.first).to_have_css("filter", "blur(22px)")
        assert images.first.evaluate("(each) => each.decode().then(() => each.naturalWidth)") > 0
        card(tab, 0).locator(".caption").click()
        tab.page.locator("#pane .reveal").click()
        expect(tab.page.locator("#pane img")).to_have_css("filter", "none")
        expect(images.nth(1)).to_have_css("filter", "blur(22px)")
        tab.page.get_by_role("button", name="Show pictures", pressed=False).click()
        expect(tab.page.get_by_role("button", name="Show pictures", pressed=True)).to_be_focused()
        expect(images.nth(1)).to_have_css("filter", "none")


def test_another_threshold_says_what_goes_and_comes(served: Served) -> None:
    with served.opened() as tab:
        tab.page.get_by_role("button", name="What if").click()
        setting, outcome = "text.words_at_least", tab.page.locator("#outcome tr")
        (now,) = (rule["value"] for rule in served.ask("/api/run")["rules"] if rule["setting"] == setting)
        for value in (now + 1, now - 1):
            answer = served.ask("/api/what-if", {"filter": {}, "thresholds": {setting: value}})
            tab.page.locator(".ruler", has_text=setting).get_by_role("spinbutton").fill(str(value))
            expect(tab.page.locator("#toml code")).to_have_text(answer["toml"])
            expect(outcome.filter(has_text="Goes").locator("td")).to_have_text([f"{n:,}" for n in answer["goes"]])
            expect(outcome.filter(has_text="Comes")).to_have_count(max(1, len(answer["comes"])))
            for each in answer["comes"]:
                line = outcome.filter(has_text=f"Comes from {each['stage']}").locator("td").first
                expect(line).to_have_text(f"{each['pairs']:,}")
            expect(tab.page.locator("#goes .card")).to_have_count(len(answer["samples"]["goes"]))
        tab.page.get_by_role("button", name="Put all back").click()
        expect(outcome.filter(has_text="Goes").locator("td").first).to_have_text("0")


def test_a_decision_is_downloaded_and_loaded(served: Served, tmp_path: Path) -> None:
    def downloaded(tab: Tab, name: str) -> Path:
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / name)
        return tmp_path / name

    kept = {"values": {"stage": ["kept"]}}
    keys = [row["key"] for first in (0, 100) for row in served.rows(first, 100, **kept)]
    with served.opened() as tab:
        facet(tab, "stage").get_by_role("checkbox", name="kept").check()
        expect(tab.page.locator(f"{SHOWN} .mark").first).to_have_text("kept")
        for at in (0, 2):
            card(tab, at).get_by_role("button", name="Mark").click()
        tab.page.get_by_role("button", name="Decide (2)").click()
        expect(tab.page.locator("#basket")).to_contain_text("2 pairs, 2 of them kept")
        expect(tab.page.locator("#commands code").first).to_contain_text("altalign select")
        assert downloaded(tab, "Download keys.txt").read_text().split() == [keys[0], keys[2]]
        tab.page.get_by_label("Remove them").check()
        expect(tab.page.locator("#commands code").first).to_contain_text("altalign remove")
        tab.page.get_by_label("All that match").check()
        expect(tab.page.locator("#basket")).to_contain_text(
            f"{len(keys)} pairs, {len(keys)} of them kept; dropped ones are removed too"
        )
        assert sorted(downloaded(tab, "Download keys.txt").read_text().split()) == sorted(keys)
        decision = downloaded(tab, "Download decision")
    with served.opened() as tab:
        tab.page.get_by_role("button", name="Decide").click()
        broken = {"name": "a.json", "mimeType": "", "buffer": b'{"altalign_browse": 1, "filter": {"text": 3}}'}
        tab.page.locator("#load").set_input_files(broken)
        expect(tab.page.locator("#loaded")).to_contain_text(
            "a.json is no decision of altalign browse: its filter's text"
        )
        tab.page.locator("#load").set_input_files(decision)
        expect(tab.page.locator("#chips .chip")).to_contain_text("kept")
        expect(tab.page.locator("#marked .card")).to_have_count(2)


def test_what_strangers_wrote_is_text(served: Served) -> None:
    with served.opened() as tab:
        tab.page.clock.install()
        captions = tab.page.locator(f"{SHOWN} .caption bdi")
        for url, links in ((SCRIPT, []), (LINK, [LINK])):
            tab.page.get_by_label("Image or page URL has").fill(url)
            expect(tab.page.locator("#chips .chip")).to_contain_text(url)
            expect(captions).to_have_text([MARKUP, TURNED.replace("\u202e", "\\u202e")])
            card(tab, 0).locator(".caption").click()
            expect(tab.page.locator("#pane dd", has_text=url)).to_be_visible()
            found = tab.page.locator("#pane a[rel='noreferrer noopener']").all()
            assert [each.get_attribute("href") for each in found] == links
            assert tab.page.locator("[src=x], [onerror]").count() == 0
        tab.page.clock.run_for(1000)
        assert sum("/api/pair/" in url for url in tab.requests) == 2, "a pair that is clicked is asked for once"


def test_a_search_shows_the_nearest_pairs_in_the_servers_order(served: Served) -> None:
    with served.opened() as tab:
        tab.page.get_by_label("Sort").select_option("-words")
        enter(tab, "a red dog")
        text, less = {"text": "a red dog"}, {"text": "blue ring", "minus": True}
        rows = served.nearest(text, count=200)
        found(tab, rows)
        chips(tab, "Search: a red dog")
        total = served.count()
        expect(tab.page.locator("#total")).to_have_text(f"The {len(rows)} nearest of {total} pairs, by clip")
        expect(tab.page.get_by_label("Sort")).to_be_disabled()
        enter(tab, "blue ring", "But not")
        without = served.nearest(text, less)
        assert [row["n"] for row in without[:9]] != [row["n"] for row in rows[:9]]
        found(tab, without)
        facet(tab, "stage").get_by_role("checkbox", name="kept").check()
        kept = {"values": {"stage": ["kept"]}}
        found(tab, served.nearest(text, less, filter=kept))
        chips(tab, "Search: a red dog", "But not: blue ring", "Stage: kept")
        expect(tab.page.locator("#total")).to_contain_text(f"of {served.count(**kept)} pairs that match, by clip")
        tab.page.reload()
        found(tab, served.nearest(text, less, filter=kept))
        expect(tab.page.get_by_label("But not")).to_have_value("blue ring")
        tab.page.locator("#chips .chip", has_text="a red dog").press("Enter")
        chips(tab, "But not: blue ring", "Stage: kept")
        found(tab, served.nearest(less, filter=kept))
        tab.page.go_back()
        found(tab, served.nearest(text, less, filter=kept))
        tab.page.get_by_role("button", name="Clear").click()
        expect(card(tab, 0).locator(".caption")).to_have_text(served.rows(sort="-words")[0]["caption"])
        expect(tab.page.locator("#grid .near")).to_have_count(0)
        expect(tab.page.get_by_label("Search", exact=True)).to_have_value("")
        expect(tab.page.get_by_label("Sort")).to_be_enabled()


def test_text_pasted_into_a_field_with_a_picture_of_it_is_text(served: Served) -> None:
    with served.opened() as tab:
        is_taken = tab.page.evaluate(
            """() => ["#search", "#grid"].map((to) => {
              const clipboardData = new DataTransfer();
              clipboardData.items.add(new File(["x"], "cells.png", {type: "image/png"}));
              clipboardData.setData("text/plain", "red ring");
              const event = new ClipboardEvent("paste", {bubbles: true, cancelable: true, clipboardData});
              return !document.querySelector(to).dispatchEvent(event);
            })"""
        )
        assert is_taken == [False, True]


@pytest.mark.parametrize("way", ["drop", "paste", "choose"])
def test_a_picture_from_outside_finds_those_like_it(served: Served, picture: bytes, way: str) -> None:
    given = {"picture": served.ask("/api/picture", picture)["picture"]}
    with served.opened() as tab:
        if way == "choose":
            button = tab.page.get_by_label("Like a picture")
            button.set_input_files({"name": FILE, "mimeType": "image/png", "buffer": picture})
        else:
            if way == "drop":
                give(tab, FILE, picture, "dragover")
                expect(tab.page.locator("body")).to_have_css("outline-style", "dashed")
            give(tab, FILE, picture, way)
        expect(tab.page.locator("body")).to_have_css("outline-style", "none")
        chips(tab, f"Like: {FILE}")
        found(tab, served.nearest(given))
        assert "picture" not in tab.page.url
        enter(tab, "red")
        chips(tab, "Search: red", f"Like: {FILE}")
        found(tab, served.nearest({"text": "red"}, given))
        tab.page.go_back()
        found(tab, served.nearest(given))
        tab.page.go_forward()
        tab.page.reload()
        chips(tab, "Search: red")
        found(tab, served.nearest({"text": "red"}))
        assert tab.page.locator("[src=x], [onerror]").count() == 0


def test_pictures_of_the_run_find_those_like_them(served: Served, picture: bytes) -> None:
    with served.opened() as tab:
        url = next(row["image_url"] for row in served.nearest({"text": "a dog"}) if row["image_url"])
        enter(tab, url)
        chips(tab, f"Like: {url}")
        found(tab, rows := served.nearest({"url": url}))
        assert rows[0]["cosine"] == pytest.approx(1, abs=1e-3)
        enter(tab, "")
        tab.page.get_by_label("By", exact=True).select_option("look")
        given = served.ask("/api/picture", picture)
        look = {row["n"] for row in served.ask("/api/rows", {"search": {"terms": [given], "with": "look"}})["rows"]}
        at, like = next(
            (i, row) for i, row in enumerate(served.rows()) if row["n"] in look and row["words"] in range(1, 9)
        )
        card(tab, at).locator(".caption").click()
        tab.page.get_by_role("button", name="Like this picture").click()
        chips(tab, f"Like: {like['caption']}")
        search = {"terms": [{"pair": like["key"]}], "with": "look"}
        found(tab, served.ask("/api/rows", {"search": search})["rows"])
        expect(tab.page.locator("#total")).to_contain_text("by look")
        expect(tab.page.locator("#failed")).to_be_hidden()
        enter(tab, "red")  # which this embedding does not take
        expect(tab.page.locator("#failed")).to_contain_text("look embeds no text")
        expect(tab.page.locator("#total")).to_have_text("The search failed.")
        expect(tab.page.locator("#grid .card")).to_have_count(0)
        tab.page.get_by_label("By", exact=True).select_option("clip")
        found(tab, served.nearest({"text": "red"}, {"pair": like["key"]}))
        expect(tab.page.locator("#failed")).to_be_hidden()
        assert ["400" in each for each in tab.complaints] == [True]
        tab.complaints.clear()


def test_words_are_searched_where_no_embedding_takes_text(without_texts: Served) -> None:
    with without_texts.opened() as tab:
        enter(tab, f"red boat {MARKUP}")
        answer = without_texts.ask("/api/rows", {"search": {"terms": [{"text": f"red boat {MARKUP}"}]}})
        chips(tab, f"Search: red boat {MARKUP}")
        percents = [{**row, "cosine": round(100 * row["cosine"])} for row in answer["rows"]]
        found(tab, percents, "{} % of the words")
        expect(tab.page.locator("#by-words")).to_contain_text("altalign score")
        expect(tab.page.locator("#total")).to_contain_text(f"{answer['total']} of {without_texts.count()} pairs")
        enter(tab, "nobodywritesthis")
        expect(tab.page.locator("#nothing")).to_be_visible()
        enter(tab, "")
        expect(tab.page.locator("#by-words")).to_be_hidden()
        assert tab.page.locator("[src=x], [onerror]").count() == 0


def test_what_is_found_is_marked_and_the_filter_alone_decides(served: Served) -> None:
    with served.opened() as tab:
        note = tab.page.get_by_text("decided by the filter, not by the search")
        enter(tab, "a small house")
        rows = served.nearest({"text": "a small house"})
        found(tab, rows)
        card(tab, 1).get_by_role("button", name="Mark").click()
        tab.page.get_by_role("button", name="Decide (1)").click()
        expect(note).to_be_visible()
        expect(tab.page.locator("#marked [data-key]")).to_have_attribute("data-key", rows[1]["key"])
        tab.page.get_by_label("All that match").check()
        expect(tab.page.locator("#basket")).to_contain_text(f"{served.count()} pairs")
        tab.page.get_by_role("button", name="Clear").click()
        expect(note).to_be_hidden()
