"""Headless Chromium on a page that lies in a file, or on a server's.

Whoever asks for it where Chromium, its driver or selenium is missing is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.trace.page import to_html
from mini_vllm.trace.types import Trace
from tests.engine.helpers.patience import PATIENCE

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium_driver(profile: Path) -> Iterator[Any]:
    """A driver with an empty profile."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        yield driver
    finally:
        driver.quit()


class Tab:
    """A tab of Chromium, with what it fetched and what its console said.

    Args:
        driver: from `chromium_driver`.
        ours: how the addresses begin that a page may ask for, beside the browser's own.
    """

    def __init__(self, driver: Any, *ours: str) -> None:
        self.driver = driver
        # Headless or behind another window, a page has no focus, and nothing on it gets a focus event.
        driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.ours = (*ours, "data:", "blob:", "chrome:")

    def size(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def js(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def wait(self, condition: str, seconds: float = PATIENCE) -> Any:
        """What the JavaScript expression gives once it is true. A busy machine is given time."""
        end = time.monotonic() + seconds
        while not (value := self.js(f"return {condition}")):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.02)
        return value

    def complaints(self) -> list[str]:
        """Console errors and warnings, and requests to anyone else, since the last call."""
        found = [f"console: {e['message']}" for e in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                found += [] if url.startswith(self.ours) else [f"request: {url}"]
        return found

    def axe(self, pause: float = 0.3) -> list[str]:
        """What axe finds serious or critical on the page as it stands: the rule and its first place."""
        spec = importlib.util.find_spec("axe_playwright_python")
        if spec is None or spec.submodule_search_locations is None:
            pytest.skip("no axe: pip install --no-deps axe-playwright-python")
        time.sleep(pause)  # colours fade into each other
        folder = Path(spec.submodule_search_locations[0])
        self.js((folder / "axe.min.js").read_text(encoding="utf-8"))
        self.driver.set_script_timeout(300)
        found = self.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, { iframes: false, resultTypes: ['violations'] }).then(({ violations }) =>"
            "  done(violations.map((v) => [v.impact, v.id, v.nodes.length, v.nodes[0].html])));"
        )
        return [
            f"{rule}, {count} times: {place[:160]}"
            for impact, rule, count, place in found
            if impact in ("serious", "critical")
        ]


class Page(Tab):
    """Chromium on a page that lies in a file."""

    def __init__(self, driver: Any, folder: Path) -> None:
        super().__init__(driver, folder.as_uri(), "about:")
        self.folder = folder
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def open(self, trace: Trace | str, name: str = "page", fragment: str = "", **view: Any) -> None:
        path = self.folder / f"{name}.html"
        path.write_text(
            trace if isinstance(trace, str) else to_html(trace, **view), encoding="utf-8"
        )
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + fragment)
        self.wait("window.viewer?.firstDrawn || document.querySelector('main')")

    def colours(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def text(self, css: str) -> str:
        return str(self.js(f"return document.querySelector({json.dumps(css)}).innerText"))

    def seconds(self) -> float:
        """Processor time that the page's main thread has used since it was opened."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float({m["name"]: m["value"] for m in metrics}["ThreadTime"])

    def drawn(self) -> None:
        """Until nothing more is to be drawn."""
        self.wait("!viewer.frame")
