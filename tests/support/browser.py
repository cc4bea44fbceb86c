"""Drives Debian's Chromium over WebDriver (https://www.w3.org/TR/webdriver2/) to test pages.

chromedriver runs on a free port until the browser is closed. `run` executes JavaScript in the page.
`log` returns the messages in the page's console.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from tests.support import needs

AXE = Path("/opt/imgbuild-engines/axe/axe.min.js")  # of tools/engines
STARTED = re.compile(r"started successfully on port (\d+)")
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
    "--hide-scrollbars", "--force-color-profile=srgb", "--disable-background-networking",
)  # fmt: skip


class Browser:
    """A window of the browser. `address` is the URL of its session."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._http = requests.Session()
        self._http.trust_env = False

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        response = self._http.request(method, f"{self._address}{path}", json=body, timeout=120)
        value = response.json()["value"]
        if response.status_code != 200:
            raise AssertionError(f"{path}: {value['error']}: {value['message']}")
        return value

    def open(self, page: Path | str) -> None:
        """Load a page, specified by a path or by a text with a fragment."""
        place = page.as_uri() if isinstance(page, Path) else page
        self._ask("POST", "/url", {"url": "about:blank"})
        self._ask("POST", "/url", {"url": place})

    def run(self, script: str, *values: object) -> Any:
        """The result of a function body with `values` as `arguments`. Promises are awaited."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": values})

    def devtools(self, command: str, **parameters: object) -> Any:
        """The result of a command of Chrome's DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def view(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the page in CSS pixels, and whether the user prefers dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, and fire the event of a key press."""
        script = """
            const field = document.querySelector(arguments[0]);
            field.value = arguments[1];
            field.dispatchEvent(new Event('input', {bubbles: true}));
        """
        self.run(script, selector, text)

    def texts(self, selector: str) -> list[str]:
        """The text of each visible element."""
        script = """
            return [...document.querySelectorAll(arguments[0])]
                .filter(each => each.checkVisibility())
                .map(each => each.textContent.replace(/\\s+/g, ' ').trim());
        """
        return list(self.run(script, selector))

    def log(self) -> list[str]:
        """The messages of the console since the last call, as text."""
        return [each["message"] for each in self._ask("POST", "/se/log", {"type": "browser"})]

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the page, or of its visible part."""
        answer = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", "")


def axe() -> str:
    """The source of axe-core. Skips the test if axe-core is not installed."""
    if not AXE.is_file():
        needs.skip_or_fail("axe-core is not installed", needs.INSTALL)
    return AXE.read_text(encoding="utf-8")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium. Skips the test if Chromium is not installed."""
    program = needs.require_tool("chromedriver", "chromium-driver")
    chromium = needs.require_tool("chromium")
    driver = subprocess.Popen(
        [program, "--port=0"], stdout=subprocess.PIPE, text=True, env={**os.environ, "LANG": "C"}
    )
    try:
        assert driver.stdout is not None
        port = next(found[1] for line in driver.stdout if (found := STARTED.search(line)))
        server = f"http://127.0.0.1:{port}"
        options = {"binary": chromium, "args": [*ARGUMENTS]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            "acceptInsecureCerts": False,
        }
        with requests.Session() as http:
            http.trust_env = False
            response = http.post(
                f"{server}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=120
            )
        value = response.json()["value"]
        assert response.status_code == 200, value
        window = Browser(f"{server}/session/{value['sessionId']}")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
