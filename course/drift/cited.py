"""What became of each citation of vLLM in a later release: which of them a reader need not check again.

`course cite drift TREE --write` compares the pin's tree with the release's and keeps the fates; without TREE
it prints the kept ones. Of each citation the first that is true:

- `code`: the symbol's code is the same, but for comments, docstrings and the annotations of functions.
- `statement`: the function is another, but has the cited statement, and all that is in it, under the same
  conditions and loops.
- `decides`: the code is another. The workloads of `course drift` run it at the pin, and the release decides
  them as the pin, but for the rules of `releases.py`; those that lie in this very symbol are named.
- `changed`: it is to be read again.
- `gone`: it is not defined there any more; its new place is said where it has one of the same name.
- `unknown`: neither tree has it, such as csrc/.

What a symbol calls is not looked at: same code means no more than that.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course.cite.check import move
from course.cite.index import FileFacts, Index, Tree
from course.cite.text import Citation
from course.drift.compare import RESULTS
from mini_vllm.core.sched.releases import RELEASES, rules_of

FATES, RAN = RESULTS / "cited.tsv", RESULTS / "ran.tsv"
KINDS = ("code", "statement", "decides", "changed", "gone", "unknown")
HOLDS = KINDS[:3]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCHEDULE = "Scheduler.schedule"
TOUCHES = {
    "lookahead slots": (_SCHEDULE,),
    "blocks that fall out of a window": ("SingleTypeKVCacheManager.remove_skipped_blocks",),
    "a window of one token": ("SlidingWindowManager._cache_block_mask",),
    "what EAGLE gives up": (
        "HybridKVCacheCoordinator.cache_blocks", "SlidingWindowManager._cache_block_mask",
    ),
    "freed blocks without a hash": ("BlockPool.free_blocks",),
    "freed blocks without prefix caching": ("BlockPool.free_blocks",),
    "an admitted decode beside drafts": (_SCHEDULE,),
    "preempted by a reset": (_SCHEDULE, "Scheduler._preempt_request"),
    "windows of plans in flight": (
        _SCHEDULE, "Scheduler._update_after_schedule", "Scheduler.update_from_output",
        "KVCacheManager.remove_skipped_blocks", "KVCacheCoordinator.remove_skipped_blocks",
        "SingleTypeKVCacheManager.remove_skipped_blocks", "get_manager_for_kv_cache_spec",
    ),
    "the tail of a prompt beside EAGLE": ("SingleTypeKVCacheManager.cache_blocks",),
    "a draft model's rows": ("Scheduler.__init__", _SCHEDULE),
    "a victim that was passed over": (_SCHEDULE,),
    "padding at the end": (_SCHEDULE,),
    "checkpoints of windows": ("SingleTypeKVCacheManager.cache_blocks",),
    "checkpoints beside EAGLE": (
        "KVCacheCoordinator.cache_blocks", "HybridKVCacheCoordinator.cache_blocks",
        "SingleTypeKVCacheManager.cache_blocks",
    ),
    "padding the first": (_SCHEDULE,),
    "a request alone": (_SCHEDULE,),
    "a hit beside EAGLE in several groups": ("HybridKVCacheCoordinator.find_longest_cache_hit",),
    "behind a victim": (_SCHEDULE,),
    "when accepted drafts are published": (
        "Scheduler._update_request_with_output", "AsyncScheduler._update_request_with_output",
        "Scheduler.update_from_output",
    ),
    "a hash beside EAGLE": ("get_request_block_hasher", "KVCacheManager.get_computed_blocks"),
}  # fmt: skip
"""Of each rule the symbols of the pin's in which its change stands, as far as it changes what was there."""


@dataclass(frozen=True)
class Fate:
    """Of a citation in a later release.

    Attributes:
        kind: one of `KINDS`.
        line: its line there; None where it has none.
        says: of `decides` and `changed` the symbol and its line there; of others what is to be said besides.
    """

    kind: str
    line: int | None = None
    says: str = ""


# --- comparing ---


def plain(value: object, in_function: bool = False) -> str:
    """A syntax tree as text, without what changes nothing that is computed."""
    if isinstance(value, list):
        return f"[{' '.join(plain(each, in_function) for each in value)}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    given = dict(ast.iter_fields(value))
    if isinstance(value, (*_FUNCTIONS, ast.ClassDef)):
        in_function = not isinstance(value, ast.ClassDef)
        if ast.get_docstring(value, clean=False) is not None:
            given["body"] = value.body[1:]
    quiet = {"ctx", "kind", "type_comment"}
    if isinstance(value, (*_FUNCTIONS, ast.arg)) or (
        in_function and isinstance(value, ast.AnnAssign)
    ):
        quiet |= {"returns", "annotation"}
    shown = [f"{k}={plain(v, in_function)}" for k, v in given.items() if k not in quiet]
    return f"{type(value).__name__}({' '.join(shown)})"


_BLOCKS = ("body", "orelse", "finalbody", "handlers")


def _statements(
    node: ast.AST, above: tuple[str, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Each statement in a node, and what it is: its own text, and that of the heads it stands under."""
    for block in _BLOCKS:
        for each in getattr(node, block, ()):
            head = [(k, plain(v, True)) for k, v in ast.iter_fields(each) if k not in _BLOCKS]
            path = (*above, f"{block} {type(each).__name__} {head}")
            yield each, path
            yield from _statements(each, path)


class _Sources:
    """The syntax of a tree's files."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    @cache  # noqa: B019  a command makes two of these
    def nodes(self, path: str) -> dict[tuple[int, int], list[ast.stmt]]:
        """By first and last line, decorators included: what stands there, as `course.cite.symbols` counts."""
        found: dict[tuple[int, int], list[ast.stmt]] = {}
        lines = self.tree.lines(path)
        for node in ast.walk(ast.parse("\n".join(lines))) if lines is not None else ():
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Assign, ast.AnnAssign)):
                marks = [d.lineno for d in getattr(node, "decorator_list", ())]
                first = min([node.lineno, *marks])
                found.setdefault((first, node.end_lineno or first), []).append(node)
        return found

    def node(self, path: str, name: str, place: int = 0) -> ast.stmt | None:
        facts = self.tree.facts(path)
        defined = facts.defined(name) if facts is not None else []
        if not defined:
            return None
        symbol = defined[min(place, len(defined) - 1)]
        return self.nodes(path).get((symbol.first, symbol.last), [None])[0]


class Judge:
    """Says the fate of citations.

    Args:
        index: the facts of the pin.
        before, now: the trees of the pin and of the release. Without the first only the index's hashes tell
            what is the same, and nothing is `statement` or `decides`.
    """

    def __init__(self, index: Index, before: Tree | None, now: Tree) -> None:
        self.index, self.before, self.now = index, before, now
        self.one, self.other = _Sources(before or now), _Sources(now)
        self.ran = read_ran()

    def fate(self, citation: Citation) -> Fate:
        moved = move(citation, self.index, self.now)
        if moved.kind == "vanished":
            return Fate("gone", None, moved.message)
        facts = (self.before or self.index).facts(citation.path)
        name = citation.symbol or _name_at(facts, citation.line)
        place = self._place(facts, name, citation.line)
        now = self.other.node(citation.path, name, place) if name else None
        if moved.kind == "unknown" or now is None:
            return Fate("unknown", None, moved.message)
        symbol = f"{name}:{now.lineno}"
        if self.before is None:
            if moved.kind in ("same", "moved"):
                return Fate("code", moved.line)
            return Fate("changed", moved.line, symbol)
        before = self.one.node(citation.path, name, place) if name else None
        if before is None:
            return Fate("unknown", None, moved.message)
        at: ast.AST = before
        line: int | None = now.lineno
        stands = False
        if not citation.named and isinstance(before, (*_FUNCTIONS, ast.ClassDef)):
            at, line = self._follow(before, now, citation.line)
            stands = line is not None
            line = self._checked(citation, line, now)
        if plain(before) == plain(now):
            return Fate("code", line or now.lineno)
        if stands:
            return Fate("statement", line)
        return Fate("decides" if self._ran(citation.path, at) else "changed", line, symbol)

    def _checked(self, citation: Citation, line: int | None, now: ast.stmt) -> int | None:
        """The line, if the cited one stands there word for word; or the only one in the symbol that reads as
        the cited one; or the line as it is."""
        assert self.before is not None
        hash_then = self.before.line_hash(citation.path, citation.line)
        if line is not None and self.now.line_hash(citation.path, line) == hash_then:
            return line
        first, last = _lines(now)
        alike = [
            n for n in range(first, last + 1) if self.now.line_hash(citation.path, n) == hash_then
        ]
        return alike[0] if len(alike) == 1 else line

    def _place(self, facts: FileFacts | None, name: str | None, line: int) -> int:
        """Which of several definitions of a name is meant: a property and its setter have the same."""
        defined = facts.defined(name) if facts is not None and name else []
        return next((n for n, symbol in enumerate(defined) if symbol.covers(line)), 0)

    def _follow(self, before: ast.stmt, now: ast.stmt, line: int) -> tuple[ast.AST, int | None]:
        """The statement on a line, and the line where the same stands now; None if it does not."""
        every = list(_statements(before))
        over = [
            n for n, (node, _) in enumerate(every) if _lines(node)[0] <= line <= _lines(node)[1]
        ]
        if not over:
            return before, now.lineno if line == before.lineno else None
        node, path = every[over[-1]]
        count = sum(other == path for _, other in every[: over[-1]])
        alike = [each for each, other in _statements(now) if other == path]
        if count >= len(alike) or plain(alike[count], True) != plain(node, True):
            return node, None  # of a loop, say, all that stands in it must be the same, too
        return node, _lines(alike[count])[0] + line - _lines(node)[0]

    def _ran(self, path: str, node: ast.AST) -> bool:
        first, last = _lines(node)
        body = getattr(node, "body", None)
        if (
            isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and body
        ):  # what is in it, not that it is defined
            first = body[0].lineno
        elif body:
            last = body[0].lineno - 1
        return any(line in self.ran.get(path, ()) for line in range(first, last + 1))


def rules_in(symbol: str, release: str) -> list[str]:
    """The rules of the release that lie in this symbol of the pin's, or in a method of this class."""
    known = release if release in RELEASES else RELEASES[-1]
    return [
        rule.name
        for rule in rules_of(known)
        if any(f"{each}.".startswith(f"{symbol}.") for each in TOUCHES.get(rule.name, ()))
    ]


def _lines(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]


def _name_at(facts: FileFacts | None, line: int) -> str | None:
    symbol = facts.at(line) if facts is not None else None
    return symbol.name if symbol is not None else None


# --- keeping ---


def save(release: str, fates: dict[str, Fate]) -> None:
    """Keep the fates, by the citation's text."""
    rows = [f"{text}\t{f.kind}\t{f.line or ''}\t{f.says}" for text, f in sorted(fates.items())]
    FATES.write_text("\n".join([f"# release\t{release}", *rows]) + "\n", encoding="utf-8")


def load() -> tuple[str, dict[str, Fate]]:
    """The release, and the fates that are kept."""
    head, *rows = FATES.read_text(encoding="utf-8").splitlines()
    fates = {}
    for row in rows:
        text, kind, line, says = row.split("\t")
        fates[text] = Fate(kind, int(line) if line else None, says)
    return head.split("\t")[1], fates


def by_page(citations: Iterable[Citation], fates: dict[str, Fate]) -> dict[str, Counter[str]]:
    """Of each file, how many of its citations of vLLM have which fate; `unknown` where none is kept."""
    found: dict[str, Counter[str]] = {}
    for citation in citations:
        if not citation.own:
            kind = fates.get(citation.text(), Fate("unknown")).kind
            found.setdefault(citation.file, Counter())[kind] += 1
    return found


def told(text: str, fate: Fate, release: str) -> str:
    """A line for a citation: what became of it, and where it is."""
    place, rest = "", fate.says
    if fate.kind in ("decides", "changed"):
        name, _, first = fate.says.rpartition(":")
        rules = rules_in(name, release) if fate.kind == "decides" else []
        place, rest = (
            f"{name} is now at line {first}",
            f"but for {', '.join(rules)}" if rules else "",
        )
    place = f"now line {fate.line}" if fate.line is not None else place
    said = "; ".join(filter(None, (place, rest)))
    return f"{fate.kind}: {text}" + (f": {said}" if said else "")


def hint(fate: Fate, release: str) -> str:
    """What a reader of the release is told in a few words."""
    words = {
        "code": "the same code", "statement": "the same statement",
        "decides": "other code, the same decisions but for its rules", "changed": "other code",
        "gone": "not there any more", "unknown": "not looked at",
    }[fate.kind]  # fmt: skip
    line = f"line {fate.line}, " if fate.line is not None else ""
    if not line and fate.kind in ("decides", "changed"):
        line = f"in what begins at line {fate.says.rpartition(':')[2]}, "
    return f"{release}: {line}{words}"


def in_words(counts: Counter[str], release: str) -> str:
    """One page's citations: how many hold, and why."""
    parts = [
        f"{counts['code']} the same code",
        f"{counts['statement']} the same statement",
        f"{counts['decides']} decide as the pin but for rules",
        f"{counts['changed']} to read again",
        f"{counts['gone']} gone",
    ]
    parts += [f"{counts['unknown']} not looked at"] if counts["unknown"] else []
    holds = sum(counts[kind] for kind in HOLDS)
    return f"{holds} of {counts.total()} hold to {release}: {', '.join(parts)}"


# --- what the workloads run ---


def read_ran() -> dict[str, set[int]]:
    """The lines of the pin's that `python -m course.drift.cited` saw, by file."""
    found: dict[str, set[int]] = {}
    for row in RAN.read_text(encoding="utf-8").splitlines():
        path, spans = row.split("\t")
        for span in spans.split():
            first, _, last = span.partition("-")
            found.setdefault(path, set()).update(range(int(first), int(last or first) + 1))
    return found


def write_ran(lines: dict[str, set[int]]) -> None:
    rows = []
    for path, ran in sorted(lines.items()):
        spans: list[list[int]] = []
        for line in sorted(ran):
            if spans and spans[-1][1] == line - 1:
                spans[-1][1] = line
            else:
                spans.append([line, line])
        rows.append(f"{path}\t{' '.join(str(a) if a == b else f'{a}-{b}' for a, b in spans)}\n")
    RAN.write_text("".join(rows), encoding="utf-8")


def main() -> int:
    """In the second environment, whose vLLM is the pin: see which lines of the scheduler, of its KV cache
    manager and of its requests the workloads run. Four minutes."""
    import vllm

    from course.drift.workloads import STEPS, cases
    from course.parity import record as recorder

    root = Path(vllm.__file__).parent
    lines: dict[str, set[int]] = {}

    def enter(frame: object, event: str, arg: object) -> object:
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        looked_at = name.startswith((f"{root}/v1/core/", f"{root}/v1/request.py"))
        if not looked_at or "encoder" in name:  # which the workloads do not ask anything
            return None
        ran = lines.setdefault(Path(name).relative_to(root.parent).as_posix(), set())

        def step(frame: object, event: str, arg: object) -> object:
            ran.add(frame.f_lineno)  # type: ignore[attr-defined]
            return step

        return step

    for case in cases():
        parts = recorder.vllm_parts(case.work["config"], case.ahead)
        sys.settrace(enter)  # type: ignore[arg-type]
        try:
            recorder.record(case.work, parts, case.ahead, STEPS)
        finally:
            sys.settrace(None)
    write_ran(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
