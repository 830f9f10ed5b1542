"""Citations: the repository's own are right, and each kind of wrong one is caught and mended.

The faults are planted in a small repository that cites a small tree, both written here. `@` stands
for vllm and `%` for csrc, so that this file itself cites nothing.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from course.cite.check import check, fix, move
from course.cite.index import INDEX, Index, Tree, TreeError, find_tree, write_index
from course.cite.names import check_names
from course.cite.symbols import cpp_symbols, python_symbols
from course.cite.text import SITE, Found, find_all
from course.docs.pages import ROOT

if TYPE_CHECKING:
    from click.testing import Result

REQUEST = '''\
"""A request."""

LIMIT = 3


class Request:
    kind: str = "a"

    def __init__(self, tokens):
        self.tokens = tokens
        self.done = False

    @property
    def num_tokens(self):
        # Counted each time.
        return len(self.tokens)

    @property
    def last(self):
        return self.tokens[-1]

    def grow(self, token):
        if self.done:
            return

        self.tokens.append(token)
        self.tokens = self.tokens[-LIMIT:]
'''
# Two lines more above the class, and another `grow`.
REQUEST_NEXT = REQUEST.replace("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\nMOST = 5\n").replace(
    "        if self.done:\n            return\n", "        token = int(token)\n"
)
KERNEL = """\
#include <cuda.h>
#define DIVIDE(a, b) \\
  (((a) + (b)-1) / (b))

namespace v {
// paged_kernel(x) { is only spoken of here
template <typename T>
__global__ void __launch_bounds__(128) paged_kernel(
    T* out) {
  if (out) { out[0] = 0; }
}

struct Params {
  int size() const { return 1; }
};
}  // namespace v
"""
FILES = {
    "@/_version.py": "__version__ = version = '1.0.0+cpu'\n",
    "@/envs.py": 'variables = {"@_CACHE_SIZE": 1, "@_LOG_LEVEL": 2}\n'.replace("@", "VLLM"),
    "@/sampling_params.py": "class SamplingParams:\n    top_k: int = 0\n",
    "@/config/cache.py": "class CacheConfig:\n    block_size: int = 16\n",
    "@/engine/arg_utils.py": 'class EngineArgs:\n    seed: int = 0\n\nFLAGS = ["--block-size"]\n',
    "@/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, **kwargs):\n        pass\n",
    "@/v1/request.py": REQUEST,
    "@/v1/core/queue.py": "class Queue:\n    pass\n",
    "%/attention/kernel.cu": KERNEL,
}


def real(text: str) -> str:
    """What the placeholders of this file stand for."""
    return text.replace("@_", "VLLM_").replace("@", "vllm").replace("%/", "csrc/")


def grow_tree(root: Path, request: str = REQUEST, release: str = "1.0.0") -> Tree:
    for name, text in FILES.items():
        file = root / real(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "vllm/_version.py").write_text(f"__version__ = version = '{release}'\n")
    (root / "vllm/v1/request.py").write_text(request)
    return Tree(root)


class Small:
    """A repository with one page, the tree that it cites, and the index of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.root.mkdir()
        self.tree = grow_tree(folder / "tree")
        self.index_file = folder / "citations.tsv"

    def page(self, text: str, name: str = "page.md") -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(real(text))

    def cite(self, place: str, name: str = "page.md") -> None:
        """One citation, linked as it should be."""
        path, lines = place.split(" ")[0].split(":")
        anchor = "-".join(f"L{n}" for n in lines.split("-"))
        self.page(
            f"See [`{place}`]({SITE}/blob/v1.0.0/{path}#{anchor}).\n".replace(SITE, "SITE"), name
        )
        file = self.root / name
        file.write_text(file.read_text().replace("SITE", SITE))

    def found(self) -> Found:
        return find_all(self.root, "1.0.0")

    @property
    def index(self) -> Index:
        found = self.found()
        places = [(c.path, c.line) for c in found.citations]
        write_index(self.tree, "1.0.0", places, places, self.index_file)
        return Index(self.index_file)

    def problems(self) -> list[str]:
        """What is wrong by the index; the tree must say the same."""
        found = self.found()
        by_index = [str(p) for p in check(found, self.index, self.root)]
        by_tree = [str(p) for p in check(found, self.tree, self.root)]
        assert by_index == by_tree, "the index and the tree it was made from disagree"
        return [*map(str, found.problems), *by_index]

    def names(self) -> list[str]:
        return [str(p) for p in check_names(self.index.names, self.root)]

    def text(self, name: str = "page.md") -> str:
        return (self.root / name).read_text().replace("vllm/", "@/")


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


# --- the repository itself ---


def test_every_citation_of_the_repository_holds_by_the_index() -> None:
    index = Index()
    found = find_all(ROOT, index.release)
    assert len(found.citations) > 100, "the search for citations has gone blind"
    problems = [*found.problems, *check(found, index), *check_names(index.names)]
    assert not problems, "course cite check:\n" + "\n".join(map(str, problems))


def test_every_citation_of_the_repository_holds_in_the_readers_tree() -> None:
    index = Index()
    tree = find_tree(ROOT, index.release)
    if tree is None or tree.release not in (None, index.release):
        pytest.skip(f"no vLLM {index.release} tree on this machine")
    problems = check(find_all(ROOT, index.release), tree)
    assert not problems, "\n".join(map(str, problems))


def test_the_check_without_a_tree_is_quick() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        index = Index()
        found = find_all(ROOT, index.release)
        check(found, index)
        check_names(index.names)
        times.append(time.perf_counter() - start)
        if times[-1] < 2.0:
            break  # the other tries are for a busy machine
    assert min(times) < 2.0, f"took {min(times):.2f} s at best"


def test_the_index_holds_facts_and_no_source() -> None:
    """Every row is names, numbers and hashes: nothing in which a line of source could stand."""
    names, _, rest = INDEX.read_text(encoding="utf-8").partition("\n[lines]\n")
    lines, _, files = rest.partition("\n[files]\n")
    shapes = [
        (names.partition("[names]\n")[2], r"(env\tVLLM_\w+|flag\t--[\w-]+|field\t\w+\t[\w ]+|)"),
        (lines, r"([\w./-]+\t\d+\t[0-9a-f]{8}|)"),
        (files, r"(>[^\t]+\t\d+(\t0)?|(\d+:)?\d+(-\d+)?\t[0-9a-f]{6}\t *[\w.:~]+\S{0,3}|)"),
    ]
    for text, shape in shapes:
        odd = [row for row in text.split("\n") if not re.fullmatch(shape, row)]
        assert not odd, odd[:5]


# --- what is right ---


@pytest.mark.parametrize(
    "place",
    [
        "@/v1/request.py:6 Request",
        "@/v1/request.py:14 Request.num_tokens",
        "@/v1/request.py:7 Request.kind",
        "@/v1/request.py:10 Request.tokens",
        "@/v1/request.py:3 LIMIT",
        "@/v1/request.py:26 in Request.grow",
        "@/v1/request.py:13 in Request.num_tokens",
        "@/v1/request.py:14-16 Request.num_tokens",
        "@/v1/request.py:26",
        "%/attention/kernel.cu:8 paged_kernel",
        "%/attention/kernel.cu:14 Params::size",
        "%/attention/kernel.cu:2 DIVIDE",
    ],
)
def test_a_right_citation_passes(small: Small, place: str) -> None:
    small.cite(place)
    assert len(small.found().citations) == 1
    assert small.problems() == []


def test_python_is_read_in_docstrings_and_comments(small: Small) -> None:
    text = '"""Source: `@/v1/request.py:6 Request`."""\nx = 1  # @/v1/request.py:26\n'
    small.page(text, "course/mod.py")
    assert [c.text() for c in small.found().citations] == [
        real("@/v1/request.py:6 Request"),
        real("@/v1/request.py:26"),
    ]
    assert small.problems() == []


def test_captured_output_is_not_read(small: Small) -> None:
    small.page(
        "<!-- output: x -->\n```text\n@/v1/request.py:999 and queue.py:3\n```\n<!-- end output -->\n"
    )
    assert small.problems() == []


# --- planted faults: check ---


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("@/v1/request.py:15 Request.num_tokens", "Request.num_tokens is defined at line 14"),
        (
            "@/v1/request.py:999 Request.num_tokens",
            "27 lines; Request.num_tokens is defined at line 14",
        ),
        ("@/v1/request.py:14 Request.last", "line 14 is the definition of Request.num_tokens"),
        ("@/v1/request.py:14 Request.missing", "does not define Request.missing"),
        ("@/v1/request.py:14 num_tokens", "but Request.num_tokens at line 14"),
        ("@/v1/request.py:1 Queue", "Queue is defined at @/v1/core/queue.py:1"),
        ("@/v1/request.py:14 in Request.grow", "Request.grow covers lines 22 to 27"),
        ("@/v1/request.py:25", "line 25 is blank; Request.grow is defined at line 22"),
        ("@/v1/request.py:40", "27 lines"),
        ("@/v1/request.py:0", "27 lines"),
        ("@/v1/request.py:16-14", "27 lines"),
        ("@/v1/queue.py:1 Queue", "no such file; did you mean @/v1/core/queue.py?"),
        ("%/attention/kernel.cu:9 paged_kernel", "paged_kernel is defined at line 8"),
    ],
)
def test_a_wrong_citation_is_caught(small: Small, place: str, said: str) -> None:
    small.cite(place)
    [problem] = small.problems()
    assert problem.startswith(real(f"page.md:1: {place}:")), problem
    assert real(said) in problem, problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[`@/v1/request.py:6 Request`](URL/@/v1/request.py#L7)", "its link leads elsewhere"),
        ("[`@/v1/request.py:6 Request`](URL/@/v1/core/queue.py#L6)", "its link leads elsewhere"),
        ("[`@/v1/request.py:6 Request`](page.md)", "its link leads elsewhere"),
        ("[`@/v1/request.py:6 Request`](SITE/blob/v0.9.0/@/v1/request.py#L6)", "the pin is v1.0.0"),
        ("[the class](URL/@/v1/request.py#L6)", "the link's text must name"),
        ("<a href='URL/@/v1/request.py#L6'>it</a>", "write [`PATH:LINE SYMBOL`](URL)"),
        ("`@/v1/request.py:6 Request`", "not linked to"),
        ("@/v1/request.py:6", "set it in backticks"),
        (
            "[`@/v1/request.py:14 Request.num_tokens()`](URL/@/v1/request.py#L14)",
            "without parentheses",
        ),
        ("`request.py:14`", "name the whole path"),
        ("`@/v1/requests.py`", "did you mean @/v1/request.py?"),
        ("`@/v2/`", "no such file or folder"),
    ],
)
def test_a_breach_of_the_grammar_is_caught(small: Small, text: str, said: str) -> None:
    small.page("words\n\n" + text.replace("URL", "SITE/blob/v1.0.0"))
    file = small.root / "page.md"
    file.write_text(file.read_text().replace("SITE", SITE))
    problems = small.problems()
    assert problems, "nothing was said"
    assert problems[0].startswith("page.md:3: "), problems
    assert any(real(said) in p for p in problems), problems


def test_a_symbol_cut_off_by_a_line_break_is_caught(small: Small) -> None:
    small.page('"""Source: `@/v1/request.py:6\nRequest`."""\n', "course/mod.py")
    assert "close the backticks" in small.problems()[0]


def test_a_bare_file_name_in_a_docstring_is_caught_and_in_a_string_is_not(small: Small) -> None:
    small.page('"""See request.py:6."""\nx = "request.py:6"\n', "course/mod.py")
    [problem] = small.problems()
    assert problem.startswith("course/mod.py:1: request.py:6: name the whole path")


def test_a_citation_of_this_repository_is_checked_against_its_files(small: Small) -> None:
    small.page("def a():\n    pass\n\n\ndef b():\n    pass\n", "course/mod.py")
    small.page("[`course/mod.py:5 b`](course/mod.py#L5), `course/mod.py:1 a`\n")
    assert small.problems() == []
    small.page("`course/mod.py:4 b`, `course/mod.py:2`, [`course/mod.py:5 b`](course/mod.py#L1)\n")
    said = "\n".join(small.problems())
    assert "b is defined at line 5" in said
    assert "name a symbol, as in `course/mod.py:2 in a`" in said
    assert "its link leads to #L1" in said


def test_a_tree_without_csrc_says_nothing_of_it(small: Small, tmp_path: Path) -> None:
    small.cite("%/attention/kernel.cu:99 paged_kernel")
    (tmp_path / "tree" / "csrc" / "attention" / "kernel.cu").unlink()
    for folder in ("attention", ""):
        (tmp_path / "tree" / "csrc" / folder).rmdir()
    assert check(small.found(), Tree(tmp_path / "tree"), small.root) == []


# --- planted faults: names ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Set `@_CACHE_SIZES=1`.", "@_CACHE_SIZES: vLLM reads no such environment variable"),
        ("```sh\n@_CACHE_SIZES=1 vllm serve x\n```", "did you mean @_CACHE_SIZE?"),
        ("Pass `--blocks-size 16`.", "--blocks-size: neither vLLM"),
        ("```sh\nvllm serve x \\\n  --block-sizes 1\n```", "vLLM's commands have no such flag"),
        ("    vllm serve x --swap-space 4", "--swap-space: vLLM's commands"),
        ("`CacheConfig.blocks_size`", "CacheConfig has no such field; did you mean block_size?"),
        ("`blocks_size=16`", "did you mean block_size?"),
        ("```python\nfrom @ import LLM\nLLM('m', sead=1)\n```", "LLM has no parameter sead"),
        ("<!-- gone: @_CACHE_SIZE -->", "is called gone, but the pin has it"),
    ],
)
def test_an_unknown_name_is_caught(small: Small, text: str, said: str) -> None:
    small.page(text)
    [problem] = small.names()
    assert real(said) in problem


def test_known_and_forgotten_names_pass(small: Small) -> None:
    small.page(
        "<!-- gone: @_USE_V1 --swap-space -->\nSet `@_CACHE_SIZE` or `@_LOG_LEVEL=1`, `--block-size`, "
        "`--seed 1`, `--no-seed`; once `@_USE_V1` and `--swap-space`. `CacheConfig.block_size`, "
        "`top_k=1`, `my_own=2`, `--my-own`.\n\n```sh\nvllm serve x --seed 1\n```\n\n"
        "```python\nfrom @ import LLM, SamplingParams\n\nLLM(model='m', seed=1)\n"
        "SamplingParams(top_k=1)\n```\n"
    )
    small.page("my_own = 1\n", "course/mod.py")
    assert small.names() == []


def test_a_variable_in_a_script_is_caught(small: Small) -> None:
    small.page("export @_CACHE_SIZES=1\n", "scripts/run.sh")
    small.page("import os\n\nos.environ['@_LOG_LEVELS'] = '1'\n", "course/mod.py")
    assert len(small.names()) == 2, "a shell assignment is a use, and so is os.environ"


# --- fix ---


def fixed(small: Small, tree: Tree, release: str = "1.0.0") -> tuple[list[str], list[str]]:
    index = small.index
    edits, looks = fix(small.found(), index, tree, release, small.root)
    return [e.after for e in edits], [f"{m.kind}: {m.message}" for m in looks]


def test_fix_moves_a_wrong_line_to_its_symbol(small: Small) -> None:
    small.cite("@/v1/request.py:15 Request.num_tokens")
    edits, looks = fixed(small, small.tree)
    assert len(edits) == 2, "the text and the link"
    assert looks == []
    assert small.problems() == []
    assert "`@/v1/request.py:14 Request.num_tokens`" in small.text()


def test_fix_links_what_is_not_linked(small: Small) -> None:
    small.page("Read `@/v1/request.py:15 Request.num_tokens` and `@/v1/request.py:26`.\n")
    fixed(small, small.tree)
    assert small.problems() == []
    assert small.text().count("](https://") == 2


def test_fix_needs_no_tree_for_what_the_index_knows(small: Small) -> None:
    small.page("# `@/v1/request.py:15 Request.num_tokens`\n", "course/mod.py")
    fix(small.found(), small.index, small.index, "1.0.0", small.root)
    assert "request.py:14 Request.num_tokens" in small.text("course/mod.py")


def test_fix_follows_definitions_and_lines_to_the_next_release(
    small: Small, tmp_path: Path
) -> None:
    places = {
        "@/v1/request.py:6 Request": 8,
        "@/v1/request.py:20 in Request.last": 22,
        "@/v1/request.py:16": 18,
        "@/v1/request.py:14-16 Request.num_tokens": 16,
    }
    for number, place in enumerate(places):
        small.cite(place, f"page{number}.md")
    after = grow_tree(tmp_path / "next", REQUEST_NEXT, "1.1.0")
    _, looks = fixed(small, after, "1.1.0")
    assert looks == []
    for number, (place, line) in enumerate(places.items()):
        text = small.text(f"page{number}.md")
        assert f"`{place.split(':')[0]}:{line}" in text, (
            f"{place} should now be line {line}: {text}"
        )
        assert f"/blob/v1.1.0/@/v1/request.py#L{line}" in text, text
    assert "16-18 Request.num_tokens" in small.text("page3.md")
    assert "#L16-L18" in small.text("page3.md")
    found = find_all(small.root, "1.1.0")
    assert found.problems == []
    assert check(found, after, small.root) == []


def test_fix_follows_a_line_through_a_changed_function_and_says_so(
    small: Small, tmp_path: Path
) -> None:
    small.cite("@/v1/request.py:27 in Request.grow")
    _, looks = fixed(small, grow_tree(tmp_path / "next", REQUEST_NEXT, "1.1.0"), "1.1.0")
    assert looks == ["changed: Request.grow is another; line 27 is now line 28"]
    assert ":28 in Request.grow" in small.text()


def test_fix_leaves_what_it_cannot_follow(small: Small, tmp_path: Path) -> None:
    small.cite("@/v1/request.py:23 in Request.grow")  # the line that the next release drops
    small.cite("@/v1/request.py:14 Request.num_tokens", "gone.md")
    lost = REQUEST_NEXT.replace("num_tokens", "count")
    _, looks = fixed(small, grow_tree(tmp_path / "next", lost, "1.1.0"), "1.1.0")
    assert any("Request.grow has lost that line" in x for x in looks), looks
    assert any(x.startswith("vanished") for x in looks), looks
    assert ":23 in Request.grow" in small.text()


def test_fix_writes_nothing_when_all_is_right(small: Small) -> None:
    small.cite("@/v1/request.py:14 Request.num_tokens")
    before = small.text()
    assert fixed(small, small.tree) == ([], [])
    assert small.text() == before


# --- drift ---


@pytest.mark.parametrize(
    ("place", "kind", "line"),
    [
        ("@/v1/request.py:3 LIMIT", "same", 3),
        ("@/v1/request.py:14 Request.num_tokens", "moved", 16),
        ("@/v1/request.py:22 Request.grow", "changed", 24),
        ("@/v1/core/queue.py:1 Queue", "vanished", None),
    ],
)
def test_drift_tells_moved_changed_and_vanished_apart(
    small: Small, tmp_path: Path, place: str, kind: str, line: int | None
) -> None:
    small.cite(place)
    after = grow_tree(tmp_path / "next", REQUEST_NEXT, "1.1.0")
    (tmp_path / "next/vllm/v1/core/queue.py").unlink()
    [citation] = small.found().citations
    moved = move(citation, small.index, after)
    assert (moved.kind, moved.line) == (kind, line), moved.message


def test_comments_and_blank_lines_change_no_hash() -> None:
    bare = python_symbols("def f(x):\n    return x\n")[0].digest
    assert python_symbols("def f(x):\n\n    # why\n    return x\n")[0].digest == bare
    assert python_symbols("def f(x):\n    return -x\n")[0].digest != bare


def test_a_class_changes_with_its_shape_not_with_its_methods() -> None:
    text = "class A:\n    x = 1\n\n    def f(self):\n        return 1\n"
    whole = python_symbols(text)[0].digest
    assert python_symbols(text.replace("return 1", "return 2"))[0].digest == whole
    assert python_symbols(text.replace("x = 1", "x = 2"))[0].digest != whole
    assert python_symbols(text.replace("def f", "def g"))[0].digest != whole


def test_symbols_of_cuda() -> None:
    found = {s.name: (s.line, s.last) for s in cpp_symbols(KERNEL)}
    assert found == {
        "DIVIDE": (2, 3), "paged_kernel": (8, 11), "Params": (13, 15), "Params::size": (14, 14),
    }  # fmt: skip


# --- index, trees and the command ---


def test_the_index_answers_as_the_tree_it_was_made_from(small: Small) -> None:
    index = small.index
    assert index.paths == small.tree.paths
    for path in index.paths:
        told, true = index.facts(path), small.tree.facts(path)
        assert told is not None
        assert true is not None
        assert told.length == true.length
        assert told.symbols is None or told.symbols == true.symbols


def test_an_index_from_a_wheel_keeps_what_the_wheel_lacks(small: Small, tmp_path: Path) -> None:
    whole = small.index
    for file in sorted((tmp_path / "tree/csrc").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (tmp_path / "tree/csrc").rmdir()
    again = tmp_path / "again.tsv"
    write_index(Tree(tmp_path / "tree"), "1.0.0", [], [], again, kept=whole)
    assert Index(again).paths == whole.paths
    assert Index(again).facts("csrc/attention/kernel.cu") == whole.facts("csrc/attention/kernel.cu")


def test_what_is_no_tree_or_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="no vLLM tree"):
        Tree(tmp_path)
    with pytest.raises(TreeError, match="course cite index"):
        Index(tmp_path / "none.tsv")
    (tmp_path / "other.tsv").write_text("something else\n")
    with pytest.raises(TreeError, match="no citation index"):
        Index(tmp_path / "other.tsv")


def test_an_installed_package_is_a_tree_too(small: Small) -> None:
    package = Tree(small.tree.root / "vllm")
    assert package.root == small.tree.root
    assert package.release == "1.0.0"


def cite(*words: str) -> Result:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from course.cite.command import app

    return CliRunner().invoke(app, words)


def test_show_prints_the_lines_of_the_readers_tree(small: Small) -> None:
    tree = small.tree.root
    (tree / "vllm/_version.py").write_text(f"__version__ = version = '{Index().release}'\n")
    out = cite("show", "vllm/v1/request.py:" + "16", "--context", "1", "--tree", str(tree))
    assert out.exit_code == 0, out.stderr
    assert out.stdout.splitlines() == [
        "vllm/v1/request.py:" + "16  in Request.num_tokens (13-16)",
        "     15 |         # Counted each time.",
        ">    16 |         return len(self.tokens)",
        "     17 |",
    ]


def test_the_command_refuses_bad_arguments(small: Small, tmp_path: Path) -> None:
    for words, said in [
        (("show", "nonsense"), "write PATH:LINE"),
        (("check", "--tree", str(tmp_path / "nowhere")), "is no vLLM tree"),
        (("check", "--tree", str(small.tree.root)), "is vLLM 1.0.0, the pin is"),
        (("fix", "--release", "9.9.9"), "give its tree with --tree"),
    ]:
        out = cite(*words)
        assert out.exit_code == 2, (words, out.stdout)
        assert said in out.stderr, (words, out.stderr)
        assert isinstance(out.exception, SystemExit)


def test_drift_against_another_tree_names_what_is_gone(small: Small) -> None:
    out = cite("drift", str(small.tree.root))
    assert out.exit_code == 0, out.stderr
    assert "vanished" in out.stdout
    assert "the file is gone" in out.stdout
