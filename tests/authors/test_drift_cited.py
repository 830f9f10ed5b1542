"""What became of the citations in a later release, as `course cite drift` says it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from course.cite.command import app
from course.cite.index import Index, Tree
from course.cite.text import Citation, find_all
from course.docs.pages import ROOT
from course.drift import cited
from course.drift.cited import (
    FATES,
    KINDS,
    TOUCHES,
    Fate,
    Judge,
    by_page,
    hint,
    in_words,
    load,
    read_ran,
    rules_in,
    save,
    told,
    write_ran,
)  # fmt: skip
from course.drift.compare import recorded_releases
from course.drift.record import cache_folder
from mini_vllm.core.sched.releases import PIN, RELEASES, RULES
from tests.engine.helpers.thorough import THOROUGH

BEFORE = '''\
class Pool:
    def take(self, n: int) -> list[int]:
        """Some blocks."""
        return self.free[:n]

    def give(self, blocks, late):
        for block in blocks:
            if block.hash is None:
                self.front.append(block)
            else:
                self.back.append(block)
        if late:
            self.tell()
            self.count += 1

    def left(self):
        return 1
'''
NOW = """\
import os


class Pool:
    def take(self, n):
        # As many as asked for.
        return self.free[:n]

    def give(self, blocks, late=False):
        for block in blocks:
            if block.hash is None:
                self.front.append(block)
            elif late:
                self.back.append(block)
        if late:
            self.tell()
            self.count += 2
"""
FATES_OF = (
    ("2 Pool.take", "code", 5),  # other annotations, comments and docstring
    ("4 in Pool.take", "code", 7),
    ("6 Pool.give", "decides", 9),  # the workloads run it
    ("9 in Pool.give", "statement", 12),
    ("8 in Pool.give", "decides", 11),  # what hangs on the condition is another
    ("11 in Pool.give", "changed", 14),  # under another condition; no workload gets there
    ("13 in Pool.give", "statement", 16),
    ("14 in Pool.give", "changed", None),
    ("16 Pool.left", "gone", None),
)


def cite(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def place(text: str) -> Citation:
    line, _, rest = text.partition(" ")
    inside = rest.startswith("in ")
    symbol = rest.removeprefix("in ")
    return Citation("page.md", 1, 0, 0, "vllm/pool.py", int(line), symbol=symbol, inside=inside)


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    monkeypatch.setattr(cited, "RAN", tmp_path / "ran.tsv")
    write_ran({"vllm/pool.py": {7, 8, 9}})
    assert (tmp_path / "ran.tsv").read_text() == "vllm/pool.py\t7-9\n"
    trees = []
    for name, text in (("before", BEFORE), ("now", NOW)):
        folder = tmp_path / name / "vllm"
        folder.mkdir(parents=True)
        (folder / "envs.py").write_text("")
        (folder / "pool.py").write_text(text)
        trees.append(Tree(tmp_path / name))
    index = tmp_path / "index.tsv"
    rows = ["# release\t0.22.1", f"file\tvllm/pool.py\t{BEFORE.count(chr(10))}"]
    facts = trees[0].facts("vllm/pool.py")
    assert facts is not None
    rows += [
        f"symbol\tvllm/pool.py\t{s.name}\t{s.line}\t{s.first}\t{s.last}\t{s.digest}"
        for s in facts.symbols
    ]
    index.write_text("\n".join(rows) + "\n")
    return Judge(Index(index), *trees)


@pytest.mark.parametrize(("text", "kind", "line"), FATES_OF)
def test_each_kind(judge: Judge, text: str, kind: str, line: int | None) -> None:
    fate = judge.fate(place(text))
    assert (fate.kind, fate.line) == (kind, line)


def test_without_the_pins_tree_hashes_tell(judge: Judge) -> None:
    judge.before = None
    assert judge.fate(place("6 Pool.give")) == Fate("changed", 9, "Pool.give:9")
    assert judge.fate(place("16 Pool.left")).kind == "gone"


def test_fates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cited, "FATES", tmp_path / "cited.tsv")
    fates = {"a.py:1 f": Fate("code", 3), "b.py:2 g": Fate("gone", None, "no file defines g")}
    save("0.99.0", fates)
    assert load() == ("0.99.0", fates)
    own = Citation("page.md", 1, 0, 0, "mini_vllm/a.py", 0, symbol="f", own=True)
    new = Citation("page.md", 1, 0, 0, "vllm/c.py", 5, symbol="h")
    old = Citation("page.md", 1, 0, 0, "a.py", 1, symbol="f")
    counts = by_page([own, new, old], fates)
    assert counts == {"page.md": Counter(code=1, unknown=1)}
    said = in_words(counts["page.md"], "0.99.0")
    assert said.startswith(
        "1 of 2 hold to 0.99.0: 1 the same code, 0 the same statement, 0 decide as"
    )
    assert said.endswith("0 gone, 1 not looked at")


def test_the_rules_that_lie_in_a_symbol_are_named() -> None:
    fate = Fate("decides", None, "BlockPool.free_blocks:560")
    said = told("x", fate, "0.24.0")
    assert (
        said
        == "decides: x: BlockPool.free_blocks is now at line 560; but for freed blocks without a hash"
    )
    assert rules_in("BlockPool.free_blocks", PIN) == []
    assert rules_in("BlockPool", "0.24.0") == ["freed blocks without a hash"]
    assert "begins at line 560, other code, the same decisions" in hint(fate, "0.33.0")
    assert hint(Fate("code", 3), "0.33.0") == "0.33.0: line 3, the same code"
    assert {rule.name for rule in RULES} <= TOUCHES.keys()


def test_what_is_kept_is_of_the_newest_release_and_of_the_citations() -> None:
    """A new citation may lack; then `course cite drift TREE --write` is due, and `unknown` says so."""
    release, fates = load()
    assert release == recorded_releases()[-1] == RELEASES[-1]
    assert {fate.kind for fate in fates.values()} <= set(KINDS)
    used = {c.text() for c in find_all(ROOT, PIN).citations if not c.own}
    assert len(used - fates.keys()) < len(used) / 20, (
        "too many citations are new: look at them again"
    )
    assert FATES.stat().st_size < 200_000
    assert {path.split("/")[1] for path in read_ran()} == {"v1"}


def test_the_command_says_it_offline() -> None:
    out = cite("drift", "--page", "phase-02-paged-attention/01-deep-dive.md")
    assert out.exit_code == 0, out.stderr
    last = out.stdout.splitlines()[-1]
    assert re.match(r"0\.22\.1 to 0\.33\.0: \d+ of \d+ hold to 0\.33\.0: \d+ the same code, ", last)
    assert "decides: vllm/v1/core/" in out.stdout
    nothing = cite("drift", "--page", "LICENSE")
    assert nothing.exit_code == 2
    assert "LICENSE cites nothing of vLLM" in nothing.stderr


@pytest.mark.skipif(
    not THOROUGH or not all((cache_folder() / r / "vllm").is_dir() for r in RELEASES),
    reason="MINI_VLLM_THOROUGH=1, and the releases' Python, which course drift --record fetches",
)
def test_each_rules_symbols_are_others_since_its_release() -> None:
    core = "vllm/v1/core"
    every: dict[str, dict[str, set[str]]] = {}
    for release in RELEASES:
        tree = Tree(cache_folder() / release)
        sources = cited._Sources(tree)
        for path in [p for p in tree.paths if p.startswith(core) and p.endswith(".py")]:
            facts = tree.facts(path)
            for symbol in facts.symbols if facts is not None else ():
                if (node := sources.node(path, symbol.name)) is not None:
                    every.setdefault(symbol.name, {}).setdefault(release, set()).add(
                        cited.plain(node)
                    )
    for rule in RULES:
        last = RELEASES[RELEASES.index(rule.first) - 1]
        for symbol in TOUCHES[rule.name]:
            there = every[symbol]
            assert there[PIN]
            assert there.get(last) != there.get(rule.first), f"{rule.name}: {symbol}"
