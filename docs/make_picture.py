"""Writes the pictures of documents, docs/images/*.png, of the demo's report and browse page: `make browse`, then this.

Chromium draws the pages. The picture of the report has its head, the funnel, and a row each of what was kept and of
what two rules dropped.
"""

import shutil
from contextlib import chdir
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from altalign.browse.server import serving

ROOT = Path(__file__).parents[1]
RUN, REPORT, BROWSE = ROOT / "runs/demo", ROOT / "docs/images/report.png", ROOT / "docs/images/browse.png"
SHOWN = "#samples-image-image_too_elongated, #samples-decontaminate-near_duplicate_of_test_image"
HIDDEN = f"""
    .know, main > section:not(#funnel, #galleries), #galleries > :not(h2, #samples-kept-kept, {SHOWN}),
    .cards > :nth-child(n + 7), .card details {{ display: none !important }}
    section {{ margin-top: 24px !important; padding-top: 16px !important }}
"""
OPEN = "shown => document.querySelectorAll(shown).forEach((gallery) => { gallery.open = true })"
HIDE = "css => { const sheet = new CSSStyleSheet(); sheet.replaceSync(css); document.adoptedStyleSheets = [sheet] }"


def main() -> None:
    """Write the pictures, in 256 colours: few bytes, and no eye sees it."""
    seen = {"reduced_motion": "reduce", "color_scheme": "light"}
    with sync_playwright() as playwright, chdir(ROOT), serving("runs/demo") as address:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1440, "height": 900}, **seen)
        page.goto((RUN / "report.html").as_uri())
        page.evaluate(HIDE, HIDDEN)
        page.evaluate(OPEN, SHOWN)
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
