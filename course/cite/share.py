"""How much of a page's rendered text is citations: they are for the reader who wants to check."""

from __future__ import annotations

import re

from course.cite.text import find_in_page
from course.docs.pages import COMMENT, FRONT, ROOT, Page

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,}).*$", re.MULTILINE)
_TABLE_RULE = re.compile(r"^[ \t]*\|?[ :|-]+\|?$", re.MULTILINE)
_TAG = re.compile(r"</?[a-z][^<>\n]*>")
_LINK = re.compile(r'!?\[([^\[\]]*)\]\((?:"[^"\n]*"|[^()"\n]|\n(?!\n))*\)')
_MARKS = re.compile(r"[`*#|>]|\s+")


def visible(text: str) -> str:
    """What a reader sees of Markdown: code and outputs belong to it, comments and link targets do not."""
    for pattern in (_COMMENT, _FENCE, _TABLE_RULE, _TAG):
        text = pattern.sub("", text)
    return _LINK.sub(r"\1", text)


def rendered(text: str) -> str:
    """`visible` without its marks and its white space."""
    return _MARKS.sub("", visible(text))


def shown(page: Page, first: int = 0, last: int | None = None) -> str:
    """The page's text, or its lines from `first` (from 0) up to `last`, without front matter and comments."""
    lines = zip(page.lines[first:last], page.kinds[first:last], strict=True)
    return "\n".join(line for line, kind in lines if kind not in (COMMENT, FRONT))


def citation_share(page: Page, release: str) -> float:
    """The part of the page's rendered characters that is the text of citations, 0 to 1."""
    whole = len(rendered(shown(page)))
    links = [c for c in find_in_page(page, ROOT, release).citations if c.linkable]
    cited = sum(len(rendered(c.label or c.text())) for c in links)
    return cited / whole if whole else 0.0


WORDS_A_MINUTE = 130
"""How fast a page with code and numbers is read: 120 to 150 words per minute."""


def words_of(page: Page, first: int = 0, last: int | None = None) -> int:
    """The words that a reader sees, of the whole page or of its lines from `first` (from 0) up to `last`."""
    return sum(any(map(str.isalnum, word)) for word in visible(shown(page, first, last)).split())
