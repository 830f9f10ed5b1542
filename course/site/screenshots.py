"""Pictures of the viewer for pages on GitHub, which shows no viewer.

    python -m course.site.screenshots            # needs chromium, chromedriver and selenium

They are scenarios opened at a step, at a width that a page can show. Not compared by a test: fonts differ
from machine to machine. Take them again when the viewer has changed.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from course.site.viewer import Viewer, make_page

ROOT = Path(__file__).parents[2]
WIDTH = 900

# picture -> scenario, what the page opens at, the window's height
SHOTS = {
    "phase-01-architecture/pictures/viewer.png": (
        "phase-01-architecture/scenarios/preemption.json",
        "step=5&request=dov",
        960,
    ),
    "phase-02-paged-attention/pictures/viewer.png": (
        "phase-02-paged-attention/scenarios/nine-blocks.json",
        "step=10&request=cy",
        960,
    ),
    "phase-03-scheduler/pictures/viewer.png": (
        "phase-03-scheduler/scenarios/noon.json",
        "step=9&request=gil",
        960,
    ),
}


def main() -> None:
    # Not in the environment in which types are checked.
    webdriver: Any = import_module("selenium.webdriver")
    service: Any = import_module("selenium.webdriver.chrome.service")
    support: Any = import_module("selenium.webdriver.support.ui")

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    driver_program = service.Service(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=driver_program)
    with tempfile.TemporaryDirectory() as folder:
        for number, (picture, (scenario, opened, height)) in enumerate(SHOTS.items()):
            # A name for each: a browser does not load again what differs after the # only.
            page = Path(folder) / f"{number}.html"
            page.write_text(make_page(Viewer(ROOT / scenario, "page.html")), encoding="utf-8")
            driver.set_window_size(WIDTH, height)
            driver.get(f"{page.as_uri()}#{opened}")
            support.WebDriverWait(driver, 20).until(
                lambda browser: browser.execute_script("return document.readyState") == "complete"
            )
            (ROOT / picture).parent.mkdir(exist_ok=True)
            driver.save_screenshot(str(ROOT / picture))
            print(f"{picture}: {(ROOT / picture).stat().st_size // 1024} KiB")
    driver.quit()


if __name__ == "__main__":
    main()
