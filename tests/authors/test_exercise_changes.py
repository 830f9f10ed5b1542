"""Exercises that change the engine: their answers' changes apply, and print what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest
from change_helpers import Answer, answers, make_changes, printed

from course.docs.pages import ROOT, read_page

EVERY = [
    pytest.param(answer, id=f"{page.parent.name}:{answer.line}")
    for page in sorted(ROOT.glob("phase-*/EXERCISES.md"))
    for answer in answers(read_page(page))
]


@pytest.mark.parametrize("answer", EVERY)
def test_a_changed_engine_prints_what_the_page_says(answer: Answer, tmp_path: Path) -> None:
    assert answer.outputs, "a change without a captured output shows nothing"
    make_changes(answer, tmp_path)
    for command, said in answer.outputs:
        assert printed(command, tmp_path) == said.strip()


def test_a_change_that_no_longer_applies_is_told(tmp_path: Path) -> None:
    path = "mini_vllm/core/block_pool.py"
    stale = Answer(1, [(path, "        this line was there once\n", "")])
    with pytest.raises(ValueError, match="0 times, not once"):
        make_changes(stale, tmp_path)


def test_an_answer_is_read_from_its_page(tmp_path: Path) -> None:
    text = (
        "<details>\n\n<!-- change: mini_vllm/a.py -->\n~~~diff\n a\n-b\n+c\n@@\n+d\n~~~\n\n"
        "<!-- output: python x.py | 2026-01-31 | a processor | Python 3.11.9 -->\n~~~text\n1\n~~~\n"
        "<!-- end output -->\n</details>\n\n~~~diff\n-not marked\n~~~\n"
    )
    (tmp_path / "page.md").write_text(text.replace("~~~", "```"))
    [answer] = answers(read_page(tmp_path / "page.md", tmp_path))
    assert answer.changes == [("mini_vllm/a.py", "a\nb\n", "a\nc\n"), ("mini_vllm/a.py", "", "d\n")]
    assert answer.outputs == [("python x.py", "1")]
