"""The glossary under the pointer: a Markdown extension that explains a term where it is used.

In each section of a page the first use of a term of GLOSSARY.md becomes an `<abbr>` with the term's
entry. Not in headings, links, code and formulas, and not where the term is bold: there the page
explains it itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

_ENTRY = re.compile(r"^\*\*(?P<term>[^*]+?)\.\*\*\s+(?P<text>.+?)(?=\n\s*\n|\Z)", re.M | re.S)
_SEE = re.compile(r"See (?P<term>[^.]+)\.")
_TOO_COMMON = {"step"}  # mostly it is no engine step that a page speaks of
_SKIPPED = {"a", "abbr", "code", "pre", "kbd", "h1", "h2", "h3", "h4", "h5", "h6", "summary"}


@dataclass(frozen=True)
class Term:
    """A term as the glossary writes it, and what it says of it, without markup."""

    name: str
    text: str

    @property
    def is_short_form(self) -> bool:
        """BPE or EOS token: capitals matter. Block: they do not."""
        return re.search(r"[A-Z]{2}", self.name) is not None


def read_terms(glossary: str) -> list[Term]:
    """The entries of a glossary. "See X." gives what X's entry says."""
    texts: dict[str, str] = {}
    names = []
    for match in _ENTRY.finditer(glossary):
        name = match["term"].replace("`", "")
        text = re.sub(r'\s*\[`[^\]]*`\]\([^)"]*"[^"]*"\)', "", match["text"])  # citations
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        texts[name.lower()] = re.sub(r"\s+", " ", re.sub(r"[`*]|\$", "", text)).strip()
        names.append(name)
    found = []
    for name in names:
        text = texts[name.lower()]
        if (see := _SEE.fullmatch(text)) is not None and see["term"].lower() in texts:
            full = see["term"]
            text = f"{full[0].upper()}{full[1:]}. {texts[full.lower()]}"
        found.append(Term(name, text))
    return found


class TermsExtension(Extension):
    """`active` can be switched off for a page, such as the glossary itself."""

    def __init__(self, terms: list[Term]) -> None:
        super().__init__()
        self.terms = terms
        self.active = True

    def extendMarkdown(self, md: Markdown) -> None:
        # After everything that makes elements, before raw HTML is put back.
        md.treeprocessors.register(_Explain(md, self), "course_terms", 3)


class _Explain(Treeprocessor):
    def __init__(self, md: Markdown, extension: TermsExtension) -> None:
        super().__init__(md)
        self.extension = extension
        self.by_name = {
            term.name if term.is_short_form else term.name.lower(): term
            for term in extension.terms
            if term.name.lower() not in _TOO_COMMON
        }
        names = sorted(self.by_name, key=len, reverse=True)
        either = "|".join(re.escape(name) for name in names)
        self.pattern = re.compile(rf"(?<![\w.-])(?:{either})s?(?![\w-])", re.IGNORECASE)
        self.seen: set[str] = set()

    def run(self, root: Element) -> None:
        self.seen.clear()
        if self.extension.active and self.by_name:
            self._walk(root, explain=True)

    def _walk(self, element: Element, explain: bool) -> None:
        if element.tag in ("h1", "h2"):
            self.seen.clear()
        if element.tag in _SKIPPED or "arithmatex" in element.get("class", ""):
            return
        if element.tag in ("strong", "th"):
            explain = False
        children = list(element)
        element.text = self._mark(element, 0, element.text, explain)
        for child in children:
            self._walk(child, explain)
            at = list(element).index(child) + 1
            child.tail = self._mark(element, at, child.tail, explain)

    def _mark(self, parent: Element, at: int, text: str | None, explain: bool) -> str | None:
        """Put an `<abbr>` into `parent` from position `at` on for each term; the text before them."""
        before, last, end = text, None, 0
        for match in self.pattern.finditer(text or ""):
            term = self._term(match[0])
            if term is None or term.name in self.seen:
                continue
            self.seen.add(term.name)
            if not explain:
                continue
            assert text is not None
            abbr = Element("abbr", title=term.text)
            abbr.text = match[0]
            abbr.tail = text[match.end() :]
            if last is None:
                before = text[: match.start()]
            else:
                last.tail = text[end : match.start()]
            parent.insert(at, abbr)
            last, end, at = abbr, match.end(), at + 1
        return before

    def _term(self, word: str) -> Term | None:
        for form in (word, word.removesuffix("s")):
            if (term := self.by_name.get(form) or self.by_name.get(form.lower())) is not None:
                return None if term.is_short_form and form != term.name else term
        return None
