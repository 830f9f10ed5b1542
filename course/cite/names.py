"""Names of vLLM's that pages use: environment variables, command-line flags, config fields.

Checked against the names of the pin, because a page that sets a variable which no longer exists
misleads without a sound. What is read:

- `VLLM_…` in pages, Python files and shell scripts;
- a `--flag` at the start of inline code, and every flag of a `vllm …` command line;
- `CacheConfig.block_size` and `block_size=16` in inline code;
- the keywords of `LLM(…)`, `SamplingParams(…)` and their like in Python blocks that import vllm.

A flag or field of this repository's own tools is as good. A page that speaks of a name *because* it
is gone says so in a comment, `<!-- gone: NAME NAME -->`, and that is checked too.
"""

from __future__ import annotations

import ast
import difflib
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from course.cite.index import Names
from course.docs.pages import CODE, OUTPUT, ROOT, Page, Problem, read_page, repository_files

_ENV = re.compile(r"(?<![A-Za-z0-9_])VLLM_[A-Z0-9_]*[A-Z0-9]\b(?!_|\*)")
NO_VARIABLES = frozenset({"VLLM_COMPILE"})
"""Looks like one of vLLM's variables, and is a member of its `CompilationMode`."""
_GONE = re.compile(r"(?:<!--|#)\s*gone:\s*(.*?)\s*(?:-->|$)", re.MULTILINE)
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_MEMBER = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)(?:=.*|\(\))?")
_SETTING = re.compile(r"([a-z]\w+)=(?!=)\S.*")
_OWN_CODE = ("mini_vllm/", "course/", "benchmarks/", "scripts/", "phase-", "conftest.py")
SHELLS = {"", "sh", "bash", "shell", "console"}


def check_names(names: Names, root: Path = ROOT) -> list[Problem]:
    """Every use of an unknown name in the repository."""
    files = repository_files(root, ".md", ".py", ".sh")
    own = _own_words(files, root)
    problems: list[Problem] = []
    for path in files:
        name = path.relative_to(root).as_posix()
        if path.suffix == ".md":
            problems += _page(read_page(path, root), names, own)
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
            if "VLLM_" in text:
                problems += _variables(name, text, names)
    return problems


def used_names(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """(file, line, name) of each variable and flag that pages and scripts use; for `drift`."""
    for path in repository_files(root, ".md", ".py", ".sh"):
        name = path.relative_to(root).as_posix()
        for at, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").split("\n"), 1
        ):
            yield from ((name, at, m.group()) for m in _ENV.finditer(line))
            if path.suffix == ".md":
                yield from ((name, at, m.group()) for m in _FLAG.finditer(line))


def _own_words(files: Iterable[Path], root: Path) -> set[str]:
    words: set[str] = set()
    for path in files:
        if path.suffix != ".md" and path.relative_to(root).as_posix().startswith(_OWN_CODE):
            text = path.read_text(encoding="utf-8", errors="replace")
            words.update(re.findall(r"[A-Za-z_]\w*", text))
            words.update(re.findall(r"--[a-z][a-z0-9-]*", text))
    return words


def _gone(text: str) -> set[str]:
    return {name for m in _GONE.finditer(text) for name in re.split(r"[,\s]+", m[1]) if name}


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _variables(name: str, text: str, names: Names) -> Iterator[Problem]:
    """`VLLM_…` in a script. A name that the file itself assigns is its own."""
    gone = _gone(text)
    for at, line in enumerate(text.split("\n"), 1):
        for m in _ENV.finditer(line):
            if m.group() in names.env | gone | NO_VARIABLES:
                continue
            if re.search(rf"^\s*{m.group()}\s*[:=]", text, re.MULTILINE):
                continue
            yield _unknown_variable(name, at, m.group(), names)


def _unknown_variable(name: str, at: int, variable: str, names: Names) -> Problem:
    near = _near(variable, names.env)
    return Problem(name, at, f"{variable}: vLLM reads no such environment variable{near}")


def _page(page: Page, names: Names, own: set[str]) -> Iterator[Problem]:
    gone = _gone(page.text)
    every = names.env | names.flags | names.all_fields
    for name in sorted(gone & every):
        at = page.line_of(page.text.index("gone:"))
        yield Problem(page.name, at, f"{name} is called gone, but the pin has it")
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if kind == OUTPUT:
            continue
        for m in _ENV.finditer(line):
            if m.group() not in names.env | gone | NO_VARIABLES:
                yield _unknown_variable(page.name, at, m.group(), names)
    for offset, span in page.spans:
        at = page.line_of(offset)
        for message in _span(span.strip(), names, own, gone):
            yield Problem(page.name, at, message)
    for at, line in _command_lines(page):
        for message in _command(line, names, gone):
            yield Problem(page.name, at, message)
    for fence in page.fences:
        if fence.language == "python":
            for row, message in _keywords("\n".join(fence.body), names, gone):
                yield Problem(page.name, fence.first + row, message)


def known_flag(flag: str, names: Names, own: set[str] | None = None) -> bool:
    """Whether vLLM, or with `own` this repository, has the flag, or the one that it switches off."""
    flag = flag.split("=")[0].split(".")[0]
    positive = "--" + flag.removeprefix("--no-") if flag.startswith("--no-") else flag
    for form in (flag, positive):
        if form in names.flags:
            return True
        if own is not None and (form in own or form[2:].replace("-", "_") in own):
            return True
    return False


def _span(span: str, names: Names, own: set[str], gone: set[str]) -> Iterator[str]:
    if span.startswith("--"):
        m = _FLAG.match(span)
        if m and m.group() not in gone and not known_flag(m.group(), names, own):
            near = _near(m.group(), names.flags)
            yield f"{m.group()}: neither vLLM nor this repository has such a flag{near}"
    elif span.startswith("vllm "):
        yield from _command(span, names, gone)
    elif (m := _MEMBER.fullmatch(span)) is not None:
        class_, member = m[1], m[2]
        fields = names.fields.get(class_)
        if (
            fields
            and not member.startswith("__")
            and member not in fields | gone
            and not (class_ in own and member in own)
        ):
            yield f"{class_}.{member}: {class_} has no such field{_near(member, fields)}"
    elif (m := _SETTING.fullmatch(span)) is not None:
        key = m[1]
        if key not in names.all_fields | own | gone:
            near = _near(key, names.all_fields)
            yield f"{key}=…: no config of vLLM's or of this repository has it{near}"


def _command_lines(page: Page) -> Iterator[tuple[int, str]]:
    """Shell lines of code blocks, continued ones joined."""
    shell: set[int] = set()
    fenced: set[int] = set()
    for fence in page.fences:
        lines = range(fence.first, (fence.last or len(page.lines)) + 1)
        fenced.update(lines)
        if fence.language in SHELLS:
            shell.update(lines)
    held, start = "", 0
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if kind != CODE or (at in fenced and at not in shell):
            held = ""
            continue
        start = start if held else at
        held += line.strip().removeprefix("$ ")
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        yield start, held
        held = ""


def words_of(command: str) -> list[str]:
    """A command line's words without its environment, `uv run` and folders of programs."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    while words and (re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]) or words[0] in ("time", "sudo")):
        words = words[1:]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in ("--extra", "--with", "--group") else words[1:]
    if words and "/bin/" in words[0]:
        words[0] = words[0].rsplit("/", 1)[1]
    return words


def _command(command: str, names: Names, gone: set[str]) -> Iterator[str]:
    words = words_of(command)
    is_vllm = words[:1] == ["vllm"] or (
        len(words) > 2 and words[1] == "-m" and words[2].split(".")[0] == "vllm"
    )
    if not is_vllm:
        return
    for word in words[1:]:
        m = _FLAG.match(word)
        if m and m.group() not in gone and not known_flag(word, names):
            near = _near(m.group(), names.flags)
            yield f"{m.group()}: vLLM's commands have no such flag{near}"


def _keywords(source: str, names: Names, gone: set[str]) -> Iterator[tuple[int, str]]:
    """Unknown keywords of vLLM's configs in a Python block that imports vllm."""
    lines = source.split("\n")
    if not any(re.match(r"\s*(?:>>> )?(?:from|import) vllm\b", line) for line in lines):
        return
    if any(line.lstrip().startswith(">>> ") for line in lines):
        lines = [re.sub(r"^\s*(?:>>>|\.\.\.) ?", "", s) if _prompt(s) else "" for s in lines]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = str(getattr(node.func, "id", "") or getattr(node.func, "attr", ""))
        fields = names.fields.get(name, set())
        for keyword in node.keywords:
            if fields and keyword.arg and keyword.arg not in fields | gone:
                near = _near(keyword.arg, fields)
                yield keyword.value.lineno, f"{name} has no parameter {keyword.arg}{near}"


def _prompt(line: str) -> bool:
    return line.lstrip().startswith((">>>", "..."))
