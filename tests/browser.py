"""A real browser for pages: Chromium without a window, every console error and every outside request on record."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
NAMES = ("chromium", "chromium-browser", "google-chrome")  # .ci/run looks for the same
HOME = ("127.0.0.1", "localhost")


@dataclass
class Seen:
    """A page, and what it did: lines of console errors and uncaught exceptions, addresses asked for elsewhere."""

    page: object
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def overflow(self) -> int:
        """How many pixels of the page lie beyond the right edge of the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def inspect(self) -> None:
        """No console errors, no outside requests, no sideways scrolling."""
        assert self.errors == []
        assert self.outside == []
        assert self.overflow <= 0


@contextmanager
def chromium() -> Iterator[object]:
    """A running browser, or a skip with the reason; $CHROMIUM names another than the one on the path."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium: install your system's chromium, or name one in $CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        # As root, which containers are, Chromium has no sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: object, address: str, *, width: str = "desktop", scheme: str = "light") -> Iterator[Seen]:
    """Open an address (file:///… or http://127.0.0.1:…) at a width of WIDTHS, light or dark; nothing outside answers.

    `seen.page` is playwright's page: click, fill, set_input_files, screenshot. Check at the end: `seen.inspect()`.
    """
    wide, high = WIDTHS[width]
    context = browser.new_context(viewport={"width": wide, "height": high}, color_scheme=scheme)
    seen = Seen(context.new_page())

    def guard(route: object) -> None:
        address = urlsplit(route.request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname not in HOME:
            seen.outside.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    context.route("**/*", guard)
    seen.page.on("console", lambda told: seen.errors.append(told.text) if told.type == "error" else None)
    seen.page.on("pageerror", lambda problem: seen.errors.append(str(problem)))
    seen.page.goto(address)
    try:
        yield seen
    finally:
        context.close()
