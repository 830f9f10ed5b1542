"""Captured output on pages: who printed it, when, on what. Never empty, never anonymous.

    <!-- output: COMMAND | DATE | HARDWARE | VERSIONS -->
    ```text
    what the command printed
    ```
    <!-- end output -->

DATE is YYYY-MM-DD. VERSIONS are names with numbers, parted by commas: `Python 3.11.9, numpy 2.2.1`.
COMMAND can be run from the repository's root: `mini-vllm …`, `course …`, `python -m MODULE`,
`python FILE`, `bash FILE` or a script's path, and what it runs must be here. A `|` in the command
is no problem, because the last three fields are counted from the end.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from functools import cache
from pathlib import Path

from course.cite.names import words_of
from course.docs.pages import ROOT, OutputBlock, Page, Problem

GRAMMAR = "<!-- output: COMMAND | DATE | HARDWARE | VERSIONS -->"
TOOLS = {"vllm", "pytest", "nvidia-smi", "lscpu"}  # what a page may show besides the project's own
_STRAY = re.compile(r"^\s*<!--\s*end output\s*-->\s*$")


def check_outputs(page: Page, root: Path = ROOT) -> list[Problem]:
    """Every output block of the page that is not well formed."""
    problems = []
    for block in page.outputs:
        for message in _block(block, root):
            problems.append(Problem(page.name, block.first, f"output: {message}"))
    ends = {block.last for block in page.outputs}
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if _STRAY.match(line) and at not in ends and kind != "code":
            problems.append(Problem(page.name, at, f"ends no block; one begins with {GRAMMAR}"))
    return problems


def _block(block: OutputBlock, root: Path) -> list[str]:
    messages = []
    fields = [part.strip() for part in block.head.rsplit(" | ", 3)]
    if len(fields) != 4 or not all(fields):
        messages.append(f"write {GRAMMAR}; this has {block.head!r}")
        command = fields[0]
    else:
        command, date, _, versions = fields
        messages += [*_date(date), *_versions(versions)]
    messages += _command(command, root)
    if not block.last:
        return [*messages, "no <!-- end output --> follows"]
    body = [line for line in block.body if line.strip()]
    if not body:
        return [*messages, "the block is empty: run the command and paste what it printed"]
    opening = re.match(r"\s*(`{3,}|~{3,})(\w*)\s*$", body[0])
    if opening is None or not re.match(rf"\s*{re.escape(opening[1])}\s*$", body[-1]):
        messages.append("what was printed stands in one ```text block, and nothing else")
    elif opening[2] not in ("text", "json"):
        messages.append(f"the block is called ```{opening[2]}: call it ```text")
    if opening is not None and len(body) < 3:
        messages.append("the block is empty: run the command and paste what it printed")
    return messages


def _date(date: str) -> list[str]:
    try:
        when = datetime.date.fromisoformat(date)
    except ValueError:
        return [f"{date!r} is no date: write YYYY-MM-DD"]
    if when > datetime.date.today() + datetime.timedelta(days=1):
        return [f"{date} is still to come"]
    return []


def _versions(versions: str) -> list[str]:
    wrong = [v.strip() for v in versions.split(",") if not re.search(r"[A-Za-z]\S* v?\d", v)]
    return [f"{v!r} is no version: write NAME NUMBER, as in numpy 2.2.1" for v in wrong]


@cache
def _programs(root: Path) -> set[str]:
    """The commands that the project installs."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return set()
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return set(project.get("scripts", {}))


def _command(command: str, root: Path) -> list[str]:
    """Why a command line, pipes and all, runs nothing that is here: at most one reason."""
    for part in _parts(command):
        words = words_of(part)
        if words[:1] == ["cd"]:
            continue
        reason = _unknown(words, root) if words else "no command is named"
        if reason is not None:
            return [reason]
    return []


def _parts(command: str) -> list[str]:
    """The simple commands of a line: cut at `|`, `&&`, `||` and `;` outside of quotes."""
    pattern = re.compile(r"""("[^"]*"|'[^']*'|\\.)|(\|\|?|&&|;)""")
    return pattern.sub(lambda m: m[1] or "\0", command).split("\0")


def _unknown(words: list[str], root: Path) -> str | None:
    """Why the words run nothing that is here, or None if they do."""
    program, *rest = words
    if re.fullmatch(r"python[\d.]*", program):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if rest[:1] == ["-m"] and len(rest) > 1:
            return _no_module(rest[1], root)
        if rest[:1] == ["-c"]:
            return "python -c is not a script that a reader finds: make it one"
        program = rest[0] if rest else ""
    elif program in ("bash", "sh") and rest:
        program = rest[0]
    elif program in _programs(root) | TOOLS or program in ("head", "tail", "grep", "sed", "cat"):
        return None
    if program and (root / program).is_file():
        return None
    return (
        f"{program or 'python'!r} is no script of this repository and no command that it installs"
    )


def _no_module(module: str, root: Path) -> str | None:
    if module in TOOLS or module.split(".")[0] == "vllm":
        return None
    path = root / Path(*module.split("."))
    if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
        return None
    return f"this repository has no module {module}"
