"""Names of vLLM's in prose; citations that are moved, and those that drifted."""

from __future__ import annotations

from pathlib import Path

import pytest
from cite_helpers import REQUEST_NEXT, Small, grow_tree, real

from course.cite.check import check, fix, move
from course.cite.index import Tree
from course.cite.text import SITE, find_all


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


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
    assert len(edits) == 1
    assert looks == []
    assert small.problems() == []
    assert '#L14 "@/v1/request.py:14 Request.num_tokens")' in small.text()


def test_fix_turns_the_old_form_into_the_new(small: Small) -> None:
    """Path and line were the link's text once."""
    small.page("[`@/v1/request.py:14 Request.num_tokens`](URL/@/v1/request.py#L14)\n")
    file = small.root / "page.md"
    file.write_text(file.read_text().replace("URL", f"{SITE}/blob/v1.0.0"))
    fixed(small, small.tree)
    assert small.problems() == []
    assert small.text().startswith("[`Request.num_tokens`](https://")


def test_fix_keeps_a_shorter_text(small: Small) -> None:
    small.cite("@/v1/request.py:15 Request.num_tokens")
    file = small.root / "page.md"
    file.write_text(file.read_text().replace("[`Request.num_tokens`]", "[`num_tokens`]"))
    fixed(small, small.tree)
    assert small.text().startswith("See [`num_tokens`](https://")
    assert small.problems() == []


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
    assert looks == ["changed: Request is another; line 6 is now line 8"]
    for number, (place, line) in enumerate(places.items()):
        text = small.text(f"page{number}.md")
        assert f'"{place.split(":")[0]}:{line}' in text, (
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
        ("@/v1/request.py:6 Request", "changed", 8),  # for its method `grow` is another
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


QUEUE = "class Queue:\n    size: int = 1\n\n    def put(self):\n        self.size += 1\n"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("@/v1/core/queue.py:1 Queue", "Queue is defined at @/v1/sched/waiting.py:2"),
        ("@/v1/core/queue.py:4 Queue.put", "Queue.put is defined at @/v1/sched/waiting.py:5"),
        ("@/v1/core/queue.py:5 in Queue.put", "Queue.put is defined at @/v1/sched/waiting.py:5"),
        ("@/v1/core/queue.py:5", "Queue.put is defined at @/v1/sched/waiting.py:5"),
        (
            "@/v1/core/queue.py:2 Queue.size",
            "Queue is defined at @/v1/sched/waiting.py:2, without size",
        ),
        (
            "@/v1/core/queue.py:8 twice",
            "twice is defined in 2 files, the nearest by its path @/v1/core/other.py:1",
        ),
        ("@/v1/core/queue.py:12 lost", "no file defines lost"),
    ],
)
def test_of_a_file_that_is_gone_drift_says_where_its_symbol_is_now(
    small: Small, tmp_path: Path, place: str, says: str
) -> None:
    """Not which file bears its name: that one defines none of it."""
    more = "\n\ndef twice():\n    pass\n\n\ndef lost():\n    pass\n"
    (small.tree.root / "vllm/v1/core/queue.py").write_text(QUEUE + more)
    small.cite(place)
    after = grow_tree(tmp_path / "next", REQUEST_NEXT, "1.1.0")
    folder = tmp_path / "next/vllm/v1"
    for name, text in {
        "sched/waiting.py": "\n" + QUEUE.replace("    size: int = 1\n", "    length = 1\n"),
        "core/other.py": "def twice():\n    pass\n",
        "far/away/from/queue/twice.py": "def twice():\n    pass\n",
        "far/queue.py": "class Line:\n    pass\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "core/queue.py").unlink()
    [citation] = small.found().citations
    moved = move(citation, small.index, after)
    assert (moved.kind, moved.message) == ("vanished", f"the file is gone; {real(says)}")
