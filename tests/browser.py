"""Chromium without a window, and a reader's hand on the slider of a report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

# Three-dimensional pictures without a graphics card.
_OPTIONS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
_MILLISECONDS = 120_000
_DRAWN = "document.querySelectorAll('.main-svg').length > 2 && document.querySelector('canvas')"


@contextmanager
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise RuntimeError("reports are opened in Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def new_tab(browser: Browser) -> Page:
    """A tab of a laptop's size."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.set_default_timeout(_MILLISECONDS)
    return tab


def open_report(tab: Page, path: Path) -> None:
    """Open a page from its file and wait until it is drawn."""
    tab.goto(path.as_uri())
    tab.wait_for_function(_DRAWN)


def move_slider(tab: Page, share: float) -> None:
    """Click on the slider's rail, as a reader does."""
    rail = tab.locator(".slider-rail-touch-rect")
    rail.scroll_into_view_if_needed()
    box = rail.bounding_box()
    assert box is not None
    tab.mouse.click(box["x"] + share * (box["width"] - 1.0) + 0.5, box["y"] + box["height"] / 2.0)


def wait_for_time(tab: Page, time: float) -> None:
    """Wait until the curves have followed the slider, and all is painted."""
    tab.wait_for_function(
        """time => {
            const cursor = document.getElementById("curves").data.find(line => line.name === "time");
            return Math.abs(cursor.x[0] - time) < 1e-6;
        }""",
        arg=time,
    )
    tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
