"""Two small files to lay side by side, both written here, and the reader's own vLLM where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from course.cite.compare import Match, same_names, sections
from course.cite.compare_page import Sheet, page
from course.cite.index import Index, Tree, find_tree
from course.cite.source_file import SourceFile
from course.docs.pages import ROOT

OURS = '''\
"""Grows parts.

Left out: leaves and
roots.
"""


class Part:
    """A part."""

    def run(self, n):
        """Run."""
        self.grow(n)
        while n and (
            self.rest
        ):
            self.again(n, self.rest)
            n -= 1
        self.finish_this_part(n)

    def alone(self):
        return self.rest


def helper(n):
    return n + 1
'''
THEIRS = '''\
LIMIT = 3


class BasePart(Thing):
    """A part."""

    limit = LIMIT

    def run(self, n):
        """Run,

        with a
        long text
        on it.
        """
        ready = n > 0
        leaves = self.count_leaves(ready)
        roots = self.count_roots(leaves)
        water = self.drink(leaves, roots)
        self.grow(n)
        while n and self.rest:
            if water:
                self.again(n)
            n -= 1
        sugar = self.photosynthesis(water)
        self.store(sugar)
        # A word.
        self.store(sugar)
        self.finish_this_part(n)
        return sugar

    def count_leaves(self, ready):
        return 1

    def alone(self):
        return self.rest


def helper(n):
    return n + 1
'''
OWN, OTHER = SourceFile(OURS), SourceFile(THEIRS)
FILE = "vllm/part.py"


def line_of(text: str, piece: str, nth: int = 0) -> int:
    """The number of the line of `text` that holds the piece."""
    return [n for n, line in enumerate(text.split("\n"), 1) if piece in line][nth]


def match(what: str, mine: str, theirs: str, symbol: str = "BasePart.run") -> Match:
    return Match(what, line_of(OURS, mine), FILE, symbol, line_of(THEIRS, theirs))


CLASS = match("`Part`", "class Part", "class BasePart", "BasePart")
RUN = match("`run`", "def run", "def run")
GROW = match("grow", "self.grow(n)", "self.grow(n)")
AGAIN = match("again", "self.again(n", "self.again(n)")


def small_page(title: str = "mini_vllm/part.py") -> str:
    """A page of the two files."""
    found = [CLASS, RUN, GROW, AGAIN]
    found += same_names(OWN, found, [FILE], lambda path: OTHER)
    parts = sections(OWN, found, lambda path: OTHER)
    sheet = Sheet(title, OWN, parts, [FILE], "leaves and roots.")
    return page([sheet], "0.22.1", lambda path: OTHER, "a tree")


def readers_vllm() -> Tree:
    """The vLLM that `MINI_VLLM_TREE` names, else the reader's own; skips where there is none."""
    release = Index().release
    named = os.environ.get("MINI_VLLM_TREE")
    tree = Tree(Path(named)) if named else find_tree(ROOT, release)
    if tree is None or tree.release not in (None, release):
        pytest.skip(f"no vLLM {release} tree on this machine")
    return tree
