"""Commands on the pages work where a page has its reader stand: in the root of the repository."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from course_helpers import ROOT

from course.learner.labs import CourseError, load_course

PROGRAM = r"(?:course|python3?|pytest|mini-vllm|bash|cd)"
COMMAND = re.compile(rf"(?:\w+=\S+ +)*(?:uv run +)?{PROGRAM} +[^\s]")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(rf"`((?:\w+=\S+ +)*{PROGRAM} [^`\n]+)`")
WRITES = ("-o", "--out", "--save", "--output", "--trace")  # what follows is made by the command
FILE = re.compile(r"\.(?:py|json|jsonl|toml|md|sh|gz|csv|tsv|txt)$")
PLACEHOLDER = re.compile(r"…|\.\.\.|<|NN|^[A-Z_]+$|^[A-Z]+\.\w+$|^(?:https?:|/|~|-|\$)")
LAB = ("grade", "hint", "watch", "diff", "reset")


def commands(text: str) -> Iterator[tuple[int, str]]:
    """The commands of a page, each with its line."""
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        for number, line in enumerate(block[1].splitlines(), first):
            line = line.strip().removeprefix("$ ")
            if COMMAND.match(line):
                yield number, line
    for inline in INLINE.finditer(text):
        yield text.count("\n", 0, inline.start()) + 1, inline[1]


def words_of(command: str) -> list[str]:
    command = re.split(r"\s#|\s[|&]|\s>", command)[0]
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def missing(root: Path, text: str) -> Iterator[str]:
    """What the commands of a page name and is not there, from `root`."""
    made: set[str] = set()
    for number, command in commands(text):
        words = words_of(command)
        if words[0] == "cd":
            yield f"line {number}: {command}: the pages stay in the root"
            continue
        made |= {after for word, after in itertools.pairwise(words) if word in WRITES}
        if words[:2] in (["course", "compare"], ["course", "cite"]):
            continue  # of mini_vllm, and of vLLM's tree
        for word in words:
            path = re.sub(r"(\.py):\w+$", r"\1", word.split("::")[0]).rstrip("/")
            named = FILE.search(path) or ("/" in path and "=" not in path)
            if not named or path in made or PLACEHOLDER.search(path):
                continue
            if not any(root.glob(path)):
                yield f"line {number}: {command}: there is no {path}"


FOLDERS = ("docs", "phase-*", "mini_vllm", "course", "benchmarks", "tests")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(p for f in FOLDERS for p in sorted(ROOT.glob(f"{f}/**/*.md"))),
]


def test_what_a_command_names_is_there_from_the_root() -> None:
    found = [
        f"{page.relative_to(ROOT)}, {problem}"
        for page in PAGES
        for problem in missing(ROOT, page.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_labs_that_a_command_names_are_there() -> None:
    course = load_course(ROOT)
    wrong = []
    for page in PAGES:
        for number, command in commands(page.read_text(encoding="utf-8")):
            match = re.match(rf"course (?:{'|'.join(LAB)}) (\d\d[-/]\d+)", command)
            try:
                _ = match and course.resolve(match[1])
            except CourseError:
                wrong.append(f"{page.relative_to(ROOT)}, line {number}: {command}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("python tool.py a", "there is no tool.py"),
        ("LAB_IMPL=starter pytest -q there/lab-0*", "there is no there/lab-0*"),
        ("cd here", "the pages stay in the root"),
        ("LAB_IMPL=starter pytest here/la*", ""),
        ("python here/lab.py --save new.json    # and gone.json", ""),
        ("python here/lab.py::test_x --impl FILE", ""),
        ("course grade 00-01", ""),
        ("mini-vllm trace here/gone.json -o NAME.html", "there is no here/gone.json"),
    ],
)
def test_what_is_seen(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "lab.py").touch()
    [*found] = missing(tmp_path, f"```bash\n{line}\n```\n")
    [*inline] = missing(tmp_path, f"Run `{line}`.\n")
    for each in (found, inline) if "#" not in line and "=" not in line else (found,):
        assert [problem in one for one in each] == ([True] if problem else []), each
