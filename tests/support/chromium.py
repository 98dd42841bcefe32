"""A real browser, Debian's Chromium, for tests of the report: what it was asked for and what it complained of."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 1440)


@dataclass
class Tab:
    """An open page, and what happened in it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def outside(self) -> list[str]:
        """Elements that stick out of the window to the right, but for what scrolls by itself or is hidden for all but
        screen readers.
        """
        return self.page.evaluate(
            """[...document.querySelectorAll('body *')]
            .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > document.documentElement.clientWidth
            + 1)
            .filter((e) => !e.closest('.scroll, pre, .card, thead')).map((e) => `${e.tagName}.${e.className}`)"""
        )


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, without a window. Skips the test where it is not there."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: `make setup-dev` brings it")
    found = (
        os.environ.get("ALTALIGN_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not found:
        pytest.skip("no Chromium: `apt install chromium` brings it, or ALTALIGN_CHROMIUM names one")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield chromium
        chromium.close()


@contextmanager
def opened(
    chromium: Any, path: Path, *, width: int = 1440, ready: str = "html[data-scripts=on]", **context: Any
) -> Iterator[Tab]:
    """A page of a file, once its scripts have run: `ready` is then in it."""
    within = chromium.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **context)
    tab = Tab(within.new_page())
    tab.page.on(
        "request",
        lambda request: tab.requests.append(request.url[:200]) if not request.url.startswith("data:") else None,
    )
    tab.page.on(
        "console", lambda message: tab.complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.page.on("dialog", lambda dialog: (tab.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.page.goto(path.as_uri())
    if context.get("java_script_enabled", True):
        tab.page.wait_for_selector(ready, state="attached")
    yield tab
    within.close()
