"""Writes the README's picture, docs/images/report.png, from the report of the demo: `make curate`, then run this.

Chromium draws the page. The picture keeps its head, the funnel, and the reasons of `judge`
without their samples.
"""

import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
REPORT, PICTURE = ROOT / "runs/demo/report.html", ROOT / "docs/images/report.png"
HIDDEN = """
    nav, .eyebrow, .know, .note, .examples, main > section:not(#funnel, #reasons),
    #reasons > :not(#reasons-title, #reasons-judge, #reasons-judge + *) { display: none !important }
    .page, header.top, section, h2, h3 { margin-bottom: 0 !important; padding-bottom: 6px !important }
    section { margin-top: 16px !important; padding-top: 16px !important }
"""
HIDE = "css => { const sheet = new CSSStyleSheet(); sheet.replaceSync(css); document.adoptedStyleSheets = [sheet] }"


def main() -> None:
    """Write the picture, in 256 colours: few bytes, and no eye sees it."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 960, "height": 600}, reduced_motion="reduce", color_scheme="light")
        page.goto(REPORT.as_uri())
        page.evaluate(HIDE, HIDDEN)
        page.screenshot(path=PICTURE, full_page=True)
        chromium.close()
    with Image.open(PICTURE) as drawn:
        drawn.convert("RGB").quantize(256).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
