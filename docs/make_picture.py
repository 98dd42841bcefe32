"""Writes the pictures of documents, docs/images/*.png, of the demo's report and browse page: `make browse`, then this.

Chromium draws the pages. The picture of the report keeps its head, the funnel, and the reasons of `judge` without their
samples.
"""

import shutil
from contextlib import chdir
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from altalign.browse.server import serving

ROOT = Path(__file__).parents[1]
RUN, REPORT, BROWSE = ROOT / "runs/demo", ROOT / "docs/images/report.png", ROOT / "docs/images/browse.png"
HIDDEN = """
    nav, .eyebrow, .know, .note, .examples, main > section:not(#funnel, #reasons),
    #reasons > :not(#reasons-title, #reasons-judge, #reasons-judge + *) { display: none !important }
    .page, header.top, section, h2, h3 { margin-bottom: 0 !important; padding-bottom: 6px !important }
    section { margin-top: 16px !important; padding-top: 16px !important }
"""
HIDE = "css => { const sheet = new CSSStyleSheet(); sheet.replaceSync(css); document.adoptedStyleSheets = [sheet] }"


def main() -> None:
    """Write the pictures, in 256 colours: few bytes, and no eye sees it."""
    seen = {"reduced_motion": "reduce", "color_scheme": "light"}
    with sync_playwright() as playwright, chdir(ROOT), serving("runs/demo") as address:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1440, "height": 900}, **seen)
        page.goto((RUN / "report.html").as_uri())
        page.evaluate(HIDE, HIDDEN)
        page.screenshot(path=REPORT, full_page=True)
        page = chromium.new_page(viewport={"width": 1440, "height": 900}, **seen)
        page.goto(address)
        page.get_by_role("button", name="Show pictures").click()
        page.wait_for_selector("#grid[aria-busy=false] .card .caption")
        page.locator("#cell-3 .caption").click()
        page.get_by_role("button", name="Like this picture").click()
        page.wait_for_selector("#grid[aria-busy=false] .near")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=BROWSE)
        chromium.close()
    for path in (REPORT, BROWSE):
        with Image.open(path) as drawn:
            drawn.convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
