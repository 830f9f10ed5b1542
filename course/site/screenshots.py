"""Pictures for pages on GitHub, which shows no viewer and no terminal.

    python -m course.site.screenshots            # of the viewer; needs chromium, chromedriver and selenium
    python -m course.site.screenshots grade      # of a grade, as README.md shows it

The viewer's are scenarios opened at a step, at a width that a page can show. The grade is what `course grade`
prints of a known mistake, in a copy of the repository. Not compared by a test: fonts differ from machine to
machine. Take them again when the viewer, or the report of a grade, has changed.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from course.learner.grade import Grade, compare, run_lab
from course.learner.labs import load_course
from course.learner.mistakes import read_mistakes
from course.learner.progress import Progress
from course.learner.report import show_grade
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

GRADE = "docs/grade.svg"
GRADED, MISTAKE = "02-01", "found_but_still_free"


def take_grade() -> None:
    """Grade a known mistake where no learner works, and draw what is printed."""
    terminal = Console(
        force_terminal=True, color_system="standard", width=96, file=io.StringIO(), highlight=False
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "course"
        left_out = (".git", ".venv", ".course", ".*_cache", "site", "upstream", "golden")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*left_out))
        course = load_course(copy)
        lab = course.resolve(GRADED)
        [mistake] = [one for one in read_mistakes(lab.folder) if one.key == MISTAKE]
        lab.starter.write_text(mistake.text, encoding="utf-8")
        run = run_lab(course, lab, Progress(copy, print))
        show_grade(terminal, course, Grade(lab, run, compare(lab, run)))
    console = Console(record=True, width=96, file=io.StringIO(), highlight=False)
    assert isinstance(terminal.file, io.StringIO)
    console.print(Text.from_ansi(terminal.file.getvalue().rstrip()))
    drawn = console.export_svg(title=f"course grade {GRADED}", unique_id="grade")
    drawn = re.sub(
        r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL
    )  # nothing is fetched from elsewhere
    (ROOT / GRADE).write_text(drawn, encoding="utf-8")
    print(f"{GRADE}: {(ROOT / GRADE).stat().st_size // 1024} KiB")


def take_viewer() -> None:
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
    take_grade() if sys.argv[1:] == ["grade"] else take_viewer()
