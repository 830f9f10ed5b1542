"""`mini_vllm/CORE.md` against a traced run: its files, what it shows of them, what else is entered."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize

import pytest

from course.docs.examples import source_blocks
from course.docs.pages import ROOT, read_page
from tests.engine.test_plain_run import CORE

PAGE = ROOT / "mini_vllm" / "CORE.md"
MOST_CODE, MOST_WORDS, MOST_SHOWN = 2_500, 1_800, 12
STOP = re.compile(r"(?m)^## (\d+)\. \[(?P<shown>[\w/]+\.py)\]\((?P<path>[\w/]+\.py)\)$")

TRACED = """
import json, sys, threading
from collections import defaultdict
import mini_vllm

folder, ran = mini_vllm.__file__.removesuffix("__init__.py"), defaultdict(set)

def trace(frame, event, arg):
    code = frame.f_code
    if not code.co_filename.startswith(folder) or not code.co_flags & 1:  # 1: a function, no module or class
        return None
    lines = ran[code.co_filename.removeprefix(folder).replace("\\\\", "/")]

    def trace_lines(frame, event, arg):
        if event == "line":
            lines.add(frame.f_lineno)
        return trace_lines

    return trace_lines

sys.settrace(trace)
threading.settrace(trace)
from mini_vllm import LLM, SamplingParams
LLM().generate(["The KV cache"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
sys.settrace(None)
print(json.dumps({file: sorted(lines) for file, lines in ran.items()}))
"""


@pytest.fixture(scope="module")
def ran() -> dict[str, set[int]]:
    """By file, the lines that ran in a function."""
    run = subprocess.run(
        [sys.executable, "-c", TRACED], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return {file: set(lines) for file, lines in json.loads(run.stdout.splitlines()[-1]).items()}


def stops() -> list[str]:
    return [match["path"] for match in STOP.finditer(PAGE.read_text(encoding="utf-8"))]


def count_code_lines(source: str) -> int:
    """Lines with code: no blank ones, no comments, no strings that stand alone."""
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in (*nothing, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_code_is_counted_without_comments_and_docstrings() -> None:
    source = '"""About\nit."""\n\nx = (1,\n     2)  # two\n# none\ndef f():\n    """One."""\n    return x\n'
    assert count_code_lines(source) == 4


def test_fifteen_files_of_at_most_2500_lines(ran: dict[str, set[int]]) -> None:
    files = stops()
    assert len(files) == 15
    assert {file.removesuffix(".py").replace("/", ".") for file in files} == CORE
    lines = {f: count_code_lines((PAGE.parent / f).read_text(encoding="utf-8")) for f in files}
    assert sum(lines.values()) <= MOST_CODE, lines
    assert [file for file in files if not ran.get(file)] == []


def test_nothing_else_is_entered_but_what_the_last_section_names(ran: dict[str, set[int]]) -> None:
    last = PAGE.read_text(encoding="utf-8").split("\n## ")[-1]
    names = re.findall(r"`([\w/]+/|[\w/]+\.py)`", last)
    others = set(ran) - set(stops())
    assert names
    assert others
    unnamed = [
        f for f in others if not any(f == n or (n[-1] == "/" and f.startswith(n)) for n in names)
    ]
    assert unnamed == []
    assert [n for n in names if not any(f == n or f.startswith(n) for f in others)] == []


def test_what_is_shown_has_run(ran: dict[str, set[int]]) -> None:
    """Each statement of an excerpt, but for the inside of a branch that was not taken."""
    page = read_page(PAGE)
    blocks = source_blocks(page)
    assert [block.path for block in blocks] == [f"mini_vllm/{file}" for file in stops()]
    for block in blocks:
        assert block.fence is not None
        shown = [line.strip() for line in block.fence.body]
        assert 0 < len(shown) <= MOST_SHOWN, block
        path = ROOT / block.path
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        places = [i for i in range(len(lines)) if lines[i : i + len(shown)] == shown]
        assert len(places) == 1, block
        inside = range(places[0] + 1, places[0] + len(shown) + 1)
        did = ran[block.path.removeprefix("mini_vllm/")]
        tree = ast.parse(path.read_bytes())
        body = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno in inside]
        if isinstance(body[0], ast.FunctionDef):
            body = body[0].body
        left = min(n.col_offset for n in body)
        for node in body:
            lines_of_it = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            assert node.col_offset > left or lines_of_it & did, (block, node.lineno)


def test_length() -> None:
    text = re.sub(r"(?s)```.*?```|<!--.*?-->", "", PAGE.read_text(encoding="utf-8"))
    assert len(text.split()) <= MOST_WORDS
