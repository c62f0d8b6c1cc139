"""A headless Chromium for tests of the page, and what they ask of it. Import it as ``browser``."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
"""Nothing of the machine is touched, and nothing is fetched."""


def programs() -> tuple[str, str]:
    """The browser and its driver; skips where one is missing."""
    pytest.importorskip("selenium", reason="selenium is not installed: pip install 'outpace[test]'")
    chrome = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chrome is None or driver is None:
        pytest.skip("no chromium with a chromedriver here: apt-get install chromium chromium-driver")
    return chrome, driver


class Page:
    """One page in a browser, asked and acted on through its own elements."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, scheme: str = "light", motion: str = "reduce") -> None:
        """Load a file in a window of this width; logs of what went before are dropped."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wishes = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
        features = [{"name": name, "value": value} for name, value in wishes]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.as_uri())
        self.driver.get_log("browser")

    def js(self, expression: str, *given: Any) -> Any:
        """The value of an expression; ``arguments`` holds what is given."""
        return self.driver.execute_script(f"return {expression}", *given)

    def text(self, css: str) -> str:
        """What an element says."""
        return str(self.js("document.querySelector(arguments[0]).textContent", css))

    def count(self, css: str) -> int:
        """How many elements there are."""
        return int(self.js("document.querySelectorAll(arguments[0]).length", css))

    def click(self, css: str) -> None:
        """Click an element with the mouse."""
        from selenium.webdriver.common.by import By

        self.driver.find_element(By.CSS_SELECTOR, css).click()

    def keys(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after the other, wherever the focus is."""
        from selenium.webdriver import ActionChains, Keys

        acts = ActionChains(self.driver, duration=0)
        for key in keys:
            one = getattr(Keys, key, key)
            acts = acts.key_down(Keys.SHIFT).send_keys(one).key_up(Keys.SHIFT) if shift else acts.send_keys(one)
        acts.perform()

    def slide(self, css: str, value: float) -> None:
        """Move a slider or choose from a list, as its user does: the value, then the events."""
        script = "const one = document.querySelector(arguments[0]); one.value = arguments[1]; "
        events = "for (const name of ['input', 'change']) one.dispatchEvent(new Event(name, { bubbles: true }))"
        self.driver.execute_script(script + events, css, value)

    def complaints(self) -> list[str]:
        """What the browser has logged since: errors of the script, of the policy, of anything that was fetched."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def opened() -> Iterator[Page]:
    """A browser with a fresh profile."""
    chrome, program = programs()
    from selenium import webdriver

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chrome
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(program, log_output=os.devnull)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.set_script_timeout(60)
            yield Page(driver)
        finally:
            driver.quit()
            service.stop()
