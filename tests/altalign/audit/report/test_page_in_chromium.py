"""The report as its reader has it: in a real browser, on a phone and a desktop, by keyboard, in print, and full of what
strangers wrote.
"""

import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.audit.checks import Check
from altalign.audit.report import page
from altalign.audit.report.page import Numbers
from altalign.audit.run_folder import RunFolder
from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import PASSED, picture, sample
from tests.support.chromium import WIDTHS, Tab, browser, opened

pytestmark = pytest.mark.browser
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true })"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


def written(run: Path, checks: tuple[Check, ...] = PASSED) -> tuple[Numbers, Path]:
    found = page.gather(RunFolder.open(str(run)), checks)
    path = run / "report.html"
    path.write_bytes(page.html(found))
    return found, path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Numbers, Path]:
    return written(report_run.write(tmp_path_factory.mktemp("report"), report_run.candidates()))


def assert_quiet(tab: Tab, path: Path) -> None:
    assert tab.complaints == []
    assert tab.requests == [path.as_uri()]
    assert tab.overflow() <= 0
    assert tab.outside() == []


def count(tab: Tab, elements: str) -> int:
    """How many elements an expression in JavaScript selects, as an array."""
    return tab.page.evaluate(f"({elements}).length")


@pytest.mark.everyday
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_in_silence_and_fits(chromium: Any, report: tuple[Numbers, Path], width: int, scheme: str):
    found, path = report
    with opened(chromium, path, width=width, color_scheme=scheme) as tab:
        charts = [each for each in (*found.distributions, *found.thresholds) if each.bins]
        assert tab.page.locator(".plot canvas").count() == len(charts)
        tab.page.evaluate(OPEN_ALL)
        assert tab.page.locator("section").count() == 9
        assert_quiet(tab, path)
        cut = """[...document.querySelectorAll('.bar')].filter((bar) => bar.getBoundingClientRect().right >
            bar.closest('.scroll').getBoundingClientRect().right + 1)"""
        assert count(tab, cut) == 0
        wide = """[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)
            .map((e) => e.querySelector("table").className || e.ariaLabel)"""
        assert set(tab.page.evaluate(wide)) <= {"matrix"}
        broken = """[...document.querySelectorAll('.fidelity td:nth-child(3) bdi')]
            .filter((each) => each.getClientRects().length > each.innerText.split(/\\s/).length)"""
        assert count(tab, broken) == 0


def test_the_policy_lets_nothing_in_and_nothing_out(chromium: Any, report: tuple[Numbers, Path]):
    with opened(chromium, report[1]) as tab:
        found = tab.page.evaluate(
            """async () => {
            const blocked = [];
            document.addEventListener('securitypolicyviolation', (event) => blocked.push(event.effectiveDirective));
            const image = new Image(); image.src = 'https://stranger.example/x.png'; document.body.append(image);
            const script = document.createElement('script'); script.textContent = 'window.ran = 1';
            document.body.append(script);
            const style = document.createElement('style'); style.textContent = 'body { display: none }';
            document.head.append(style);
            const button = document.createElement('button'); button.setAttribute('onclick', 'window.ran = 2');
            document.body.append(button); button.click();
            const frame = document.createElement('iframe'); frame.src = 'https://stranger.example/';
            document.body.append(frame);
            const asked = await fetch('https://stranger.example/').then(() => 'answered', () => 'refused');
            await new Promise((resolve) => setTimeout(resolve, 200));
            const hidden = getComputedStyle(document.body).display;
            return { ran: window.ran ?? null, asked, hidden, blocked: blocked.sort() };
            }"""
        )
        assert found["ran"] is None
        assert (found["asked"], found["hidden"]) == ("refused", "block")
        assert found["blocked"] == sorted(
            ["img-src", "script-src-elem", "style-src-elem", "script-src-attr", "frame-src", "connect-src"]
        )


@pytest.mark.everyday
def test_a_curve_reads_out_what_a_stop_keeps(chromium: Any, report: tuple[Numbers, Path]):
    """`test_numbers.py` holds these numbers against judging every candidate anew."""
    found, path = report
    each = next(each for each in found.thresholds if each.key == "words_at_least")
    with opened(chromium, path) as tab:
        chart = tab.page.locator("#chart-words_at_least")
        chart.locator(".u-over").hover(position={"x": 1, "y": 50})
        first = each.bins[0]
        said = f"{first.label}: {first.kept:,} pass every text rule, {first.dropped:,} fail this rule alone"
        assert chart.locator(".readout").inner_text() == said
        chart.locator("summary").press("Enter")
        assert chart.locator("tbody tr:not(.threshold)").count() == len(each.bins)
        assert chart.locator("tr.threshold").inner_text() == "this run"
        assert tab.complaints == []


# Galleries -----------------------------------------------------------------------------------------------------------


def test_galleries_open_by_keyboard_and_count_pairs_and_images(chromium: Any, report: tuple[Numbers, Path]):
    found, path = report
    (rows,) = [each.rows for stage in found.stages for each in stage.reasons if each.name == "image_too_small"]
    with opened(chromium, path) as tab:
        gallery = tab.page.locator("#samples-judge-text_too_short")
        assert not gallery.locator(".card").first.is_visible()
        gallery.locator("> summary").press("Enter")
        assert gallery.locator(".card").first.is_visible()
        image = tab.page.locator("#samples-kept-kept img").first
        assert image.evaluate("async (e) => { e.loading = 'eager'; await e.decode(); return e.naturalWidth }") == 96
        tab.page.locator("#reasons a[href='#samples-extract-record_broken']").press("Enter")
        # the page opens it once it is told of the new address
        tab.page.locator("#samples-extract-record_broken .card").first.wait_for(state="visible")
        said = tab.page.locator("#samples-image-image_too_small > summary").inner_text()
        assert f"{rows:,} pairs, 17 images; 2 shown, one an image" in said
        row = tab.page.locator("#reasons tr", has_text="image_too_small").first
        assert row.locator("td").all_inner_texts()[:2] == [f"{rows:,}", "17"]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with pictures of kept and dropped pairs, of two sources."""
    run = report_run.write(tmp_path_factory.mktemp("a run"), report_run.candidates(400))
    rows = [sample("kept", "kept", number, picture=picture(number)) for number in range(10)]
    rows[3] |= {"caption": "Rotes Boot, verstreut", "source": "table"}
    rows += [
        sample("judge", "text_too_short", number, caption=f"Boot {number}", source="table") for number in range(20, 22)
    ]
    for first, reason in ((30, "image_too_small"), (40, "image_too_elongated")):
        rows += [sample("image", reason, first + number, picture=picture(number)) for number in range(5)]
    rows.append(sample("extract", "record_broken", 50, key=None, image_url=None, caption=None))
    report_run.write_samples(run, rows)
    return written(run)[1]


@pytest.mark.everyday
@pytest.mark.parametrize("is_refused", [False, True])
def test_the_explain_command_is_copied_as_a_shell_needs_it(chromium: Any, pictured: Path, *, is_refused: bool):
    command = ["altalign", "explain", str(pictured.parent), "--key", f"{0:032x}"]
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(chromium, pictured, width=390, permissions=permissions) as tab:
        if is_refused:
            tab.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        card = tab.page.locator("#samples-kept-kept .card").first
        assert card.inner_text().split() == ["a", "red", "boat", "0", "Details"]
        card.locator("summary").press("Enter")
        assert "https://img.example/0.jpg" in card.inner_text()
        card.get_by_role("button", name="Copy explain command").click()
        card.get_by_role("button", name="Selected" if is_refused else "Copied").wait_for()
        copied = "getSelection().toString()" if is_refused else "navigator.clipboard.readText()"
        assert shlex.split(tab.page.evaluate(copied)) == command
        assert tab.page.locator("#samples-extract-record_broken .copy").count() == 0  # it has no key and no URL
        assert_quiet(tab, pictured)


def cards(tab: Tab) -> list[str]:
    """The captions of all cards that can be seen."""
    return [each.inner_text() for each in tab.page.locator(".samples .caption").all() if each.is_visible()]


@pytest.mark.everyday
def test_samples_are_found_by_text_reason_and_source(chromium: Any, pictured: Path):
    with opened(chromium, pictured, width=390) as tab:
        text, reason, source = (tab.page.get_by_label(name, exact=True) for name in ("Text", "Reason", "Source"))
        found = tab.page.locator("#find-found")
        before = cards(tab)
        assert len(before) == 10
        text.fill("BOOT")  # whatever its case, at the beginning of a word, and in galleries that were closed
        assert cards(tab) == ["Rotes Boot, verstreut", "Boot 20", "Boot 21"]
        assert found.inner_text() == "3 of the 23 samples on this page"
        text.fill("reut")
        assert cards(tab) == []
        text.fill("boot 21")
        assert cards(tab) == ["Boot 21"]
        text.fill("img.example/31.jpg")  # details are searched, folded or not
        assert cards(tab) == ["a red boat 31"]
        text.fill("")
        source.select_option("table")
        assert cards(tab) == ["Rotes Boot, verstreut", "Boot 20", "Boot 21"]
        reason.select_option("text_too_short")
        assert cards(tab) == ["Boot 20", "Boot 21"]
        tab.page.get_by_role("button", name="Show all").press("Enter")
        assert cards(tab) == before
        assert "23 samples on this page" in found.inner_text()
        assert_quiet(tab, pictured)


def test_nsfw_pictures_are_blurred_until_asked_for(chromium: Any, tmp_path: Path):
    run = report_run.write(tmp_path, report_run.candidates(200), extra='\n[image.nsfw]\nmodel = "nsfw.onnx"\n')
    scores = enumerate((0.49, 0.5, 0.99, None))
    rows = [sample("kept", "kept", number, picture=picture(number), nsfw_score=score) for number, score in scores]
    report_run.write_samples(run, rows)
    images = "[...document.querySelectorAll('#samples-kept-kept .picture img')]"
    blurs = f"{images}.map((e) => getComputedStyle(e).filter !== 'none')"
    with opened(chromium, written(run)[1]) as tab:
        assert tab.page.evaluate(blurs) == [False, True, True, False]
        tab.page.get_by_role("button", name="Show (NSFW score)").first.press("Enter")
        assert tab.page.evaluate(blurs) == [False, False, True, False]
        tab.page.get_by_role("button", name="Blur all pictures").press("Enter")
        assert tab.page.evaluate(blurs) == [True, False, True, True]
        tab.page.emulate_media(media="print")
        third = tab.page.locator("#samples-kept-kept .picture img").nth(2)
        assert third.evaluate("(e) => getComputedStyle(e).visibility") == "hidden"


# Other readers -------------------------------------------------------------------------------------------------------


def test_a_failed_check_is_a_red_line_at_the_top(chromium: Any, tmp_path: Path):
    failed = Check("words are within the limits", passed=False, detail="shard 00003: 3 pairs have 323 words", checked=3)
    _, path = written(report_run.write(tmp_path, report_run.candidates(200)), (*PASSED, failed))
    with opened(chromium, path) as tab:
        line = tab.page.get_by_role("alert")
        assert "1 of 3 checks failed" in line.inner_text()
        assert line.bounding_box()["y"] < 400
        colour = line.evaluate("(e) => getComputedStyle(e).color.match(/\\d+/g).slice(0, 3)")
        assert int(colour[0]) > 2 * max(int(colour[1]), int(colour[2]))
        assert "323 words" in tab.page.locator("#checks tbody tr").first.inner_text()
        passed = tab.page.locator("#checks-passed")
        assert passed.locator("summary").inner_text() == "2 checks passed"
        assert not passed.locator("tbody tr").first.is_visible()
        passed.locator("summary").press("Enter")
        assert passed.locator("tbody tr").first.is_visible()


def test_it_prints(chromium: Any, report: tuple[Numbers, Path]):
    with opened(chromium, report[1], color_scheme="dark") as tab:
        tab.page.emulate_media(media="print")
        assert not tab.page.locator("nav").is_visible()
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.page.pdf(format="A4")[:5] == b"%PDF-"
        assert tab.complaints == []


def test_without_scripts_every_number_is_in_a_table(chromium: Any, report: tuple[Numbers, Path]):
    found, path = report
    with opened(chromium, path, java_script_enabled=False) as tab:
        assert tab.page.get_by_text("Scripts are off").is_visible()
        for each in (*found.distributions, *found.thresholds):
            assert tab.page.locator(f"#chart-{each.key} tbody tr:not(.threshold)").count() == len(each.bins)


def test_it_is_told_to_those_who_do_not_see_it(chromium: Any, report: tuple[Numbers, Path]):
    """Landmarks, one first heading and no level left out, a name for everything that can be used or scrolls, headers in
    every table.
    """
    with opened(chromium, report[1]) as tab:
        for role in ("banner", "navigation", "main"):
            assert tab.page.get_by_role(role).count() == 1
        levels = tab.page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1]))")
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        for wrong in (
            """[...document.querySelectorAll('input, button, [role=region], [role=img], section, aside, nav, summary')]
                .filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim() ||
                document.getElementById(e.getAttribute('aria-labelledby'))))""",
            """[...document.querySelectorAll('table')].filter((e) => !e.querySelector('th[scope=col]') ||
                !e.querySelector('th[scope=row]') && e.rows.length > 2)""",
            "[...document.querySelectorAll('img')].filter((e) => !e.hasAttribute('alt'))",
            "[...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)",
        ):
            assert count(tab, wrong) == 0, wrong
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the report"


# Strangers -----------------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "</style><style>body { display: none }</style>",
    "<img src=x onerror='window.ran = 3'>",
    "<svg onload=window.ran=4><iframe src=https://stranger.example/>",
    '" onmouseover="window.ran=5" autofocus onfocus="window.ran=6',
    "' autofocus onfocus='window.ran=7",
    "<a href=javascript:window.ran=8>click</a>",
    "{{7*7}} {% raw %}{{ numbers.folder }} ${7*7} #{7*7} <%= 7*7 %>",
    "&lt;script&gt; &amp; &#60;script&#62;",
    "<!-- <title>gone</title><base href=https://stranger.example/><meta http-equiv=refresh content=0;url=https://stranger.example/>",
    "\u202egnp.cod\u202c \u2066\u2067\u2069 \u200b\ufeff left to right",
    "shalom \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "Z" + "\u0300\u0316\u0348" * 300,
    "W" * 5_000,
    "\x00\x01\x07\x1b[31m\x7f\x85\u2028\u2029 line\r\nbreaks\ttoo",
    "\ufffd\ufffe\uffff\U0010ffff\ue000\U000e0041 broken",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067",
)
URLS = (
    "javascript:window.ran=9//https://img.example/a.jpg",
    "  javascript:window.ran=10",
    'https://img.example/"onmouseover="window.ran=11',
    "https://img.example/'><script>window.ran=12</script>",
    "data:text/html,<script>window.ran=13</script>",
    "https://img.example/" + "a/" * 4_000,
    "HTTPS://user:secret@img.example/\u202egpj.exe",
    "//stranger.example/x.png",
    "vbscript:window.ran=14",
)


NAMED = (
    ("kept", "kept"),
    ("judge", "text_too_short"),
    ("extract", "record_broken"),
    ("decontaminate", "near_duplicate_of_test_image"),
)


def hostile_rows() -> list[dict[str, Any]]:
    rows = []
    for number, text in enumerate((*HOSTILE, "y" * 10_000_000)):
        url = URLS[number % len(URLS)]
        stage, reason = NAMED[number % len(NAMED)]
        strange = dict.fromkeys(("caption", "source", "test_set", "test_image", "file", "error"), text)
        strange |= {"image_url": url, "page_url": URLS[(number + 1) % len(URLS)], "kept_key": text[:2_000]}
        seen = picture(number) if number % 2 else text.encode()[:50]
        rows.append(sample(stage, reason, number, **strange, offset=3, failed=[reason, text[:300]], picture=seen))
    return rows


def replaced(path: Path, rows: int, **columns: Any) -> None:
    """A Parquet file of so many rows with other values, and ones where nothing is given."""
    schema = pq.read_schema(path)
    values = [pa.array(columns.get(field.name, [1] * rows), field.type) for field in schema]
    pq.write_table(pa.table(values, schema=schema), path)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = report_run.write(tmp_path_factory.mktemp("<script>window.ran=0<"), report_run.candidates(400))
    report_run.write_samples(run, hostile_rows())
    texts, audit = [*HOSTILE, *URLS], run / "audit"
    number = len(texts)
    replaced(audit / "frequent.parquet", 2 * number, kind=["text"] * number + ["image"] * number, value=texts * 2)
    is_in = [place % 2 == 0 for place in range(number)]
    replaced(audit / "edge_ngrams.parquet", number, ngram=texts, is_in=is_in)
    replaced(audit / "hosts.parquet", number, host=texts)
    replaced(audit / "scripts.parquet", number, script=texts, verdict=texts)
    near = pq.read_table(audit / "near_duplicates/gallery.parquet")
    kinds = ("just above", "dropped")
    rows = [
        {"kind": text[:20] if place % 3 == 2 else kinds[place % 3], "test_set": text, "test_image": text}
        | {"image_url": URLS[place % len(URLS)]}
        for place, text in enumerate(texts)
    ]
    rows = [{**near.to_pylist()[0], **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, schema=near.schema), audit / "near_duplicates/gallery.parquet")
    for name in ("counts.parquet", "audit/failed.parquet"):
        table = pq.read_table(run / name)
        sources = pa.array([HOSTILE[place % len(HOSTILE)] for place in range(len(table))])
        pq.write_table(table.set_column(table.column_names.index("source"), "source", sources), run / name)
    config = (run / "config.toml").read_text(encoding="utf-8")
    config = config.replace("tests/coco", "<script>window.ran = 15</script>{{7*7}}")
    (run / "config.toml").write_text(config, encoding="utf-8")
    return written(run, tuple(Check(text, place % 2 == 0, text, 1) for place, text in enumerate(texts)))[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_what_strangers_wrote_does_nothing_but_stand_there(chromium: Any, hostile: Path, width: int):
    with opened(chromium, hostile, width=width) as tab:
        tab.page.evaluate(OPEN_ALL)
        tab.page.evaluate(
            "for (const e of document.querySelectorAll('body *')) for (const type of ['mouseover', 'focus', 'error', "
            "'load']) e.dispatchEvent(new Event(type))"
        )
        assert tab.page.evaluate("window.ran ?? null") is None
        assert tab.page.title().startswith("Audit of ")
        assert tab.page.locator("script").count() == 2
        assert tab.page.locator("iframe, object, embed, base, link, body style, body meta").count() == 0
        attributes = """[...document.querySelectorAll('*')].filter((e) => !e.closest('.uplot'))
            .flatMap((e) => e.getAttributeNames()).filter((name) => name.startsWith('on') || name === 'style')"""
        assert count(tab, attributes) == 0
        links = tab.page.evaluate("[...document.querySelectorAll('a')].map((e) => [e.getAttribute('href'), e.rel])")
        assert all(
            href.startswith("#") or (href.lower().startswith(("http://", "https://")) and rel == "noreferrer noopener")
            for href, rel in links
        )
        assert count(tab, "[...document.images].filter((e) => !e.src.startsWith('data:image/'))") == 0
        assert_quiet(tab, hostile)


def test_what_strangers_wrote_is_shown_as_it_is(chromium: Any, hostile: Path):
    with opened(chromium, hostile) as tab:
        text = tab.page.locator("body").evaluate("(e) => e.textContent")
        plain = ("<script>window.ran = 1</script>", "{{7*7}}", "&lt;script&gt;", "javascript:window.ran=9")
        for said in (*plain, "\u05e9\u05dc\u05d5\u05dd", r"\u202egnp.cod", r"\x1b[31m", r"\r\nbreaks\ttoo"):
            assert said in text, said
        assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\x00\x1b\ufeff")
        assert "9,999,600 characters more" in text
        assert hostile.stat().st_size < 5_000_000
        assert (
            count(tab, "[...document.querySelectorAll('.caption')].filter((e) => !e.querySelector('bdi, .none'))") == 0
        )
