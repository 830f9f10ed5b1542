"""The picture of a grade that README.md shows, since GitHub shows no terminal.

    python -m course.site.grade_picture

It is what `course grade` prints of a known mistake, in a copy of the repository. Draw it again when a grade
is reported differently: no test compares it.
"""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from course.learner.grade import Grade, compare, run_lab
from course.learner.labs import load_course
from course.learner.mistakes import read_mistakes
from course.learner.progress import Progress
from course.learner.report import show_grade

ROOT = Path(__file__).parents[2]
GRADE = "docs/grade.svg"
GRADED, MISTAKE = "02-01", "found_but_still_free"


def main() -> None:
    """Grade a known mistake where no learner works, and draw what is printed."""
    console = Console(
        record=True, force_terminal=True, width=96, file=io.StringIO(), highlight=False
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
        show_grade(console, course, Grade(lab, run, compare(lab, run)))
    drawn = console.export_svg(title=f"course grade {GRADED}", unique_id="grade")
    # The fonts would be fetched from elsewhere.
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    (ROOT / GRADE).write_text(drawn, encoding="utf-8")
    print(f"{GRADE}: {(ROOT / GRADE).stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
