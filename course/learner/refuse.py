"""The answer, imported: a lab's file may use the engine, but not the very thing that the lab builds.

The front matter of a lab's README names that, as an object or as a module:

    builds: ["mini_vllm.sample.ops:softmax", "mini_vllm.core.sched.scheduler:Scheduler.schedule",
        "mini_vllm.engine.async_llm"]

An object is refused wherever it is imported from. Of a module everything that is defined in it, or below it,
is refused. The fixture `lab` asks here once it has loaded a file.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

from course.learner.front_matter import front_matter


class AnswerImportedError(ImportError):
    """A file takes from the engine what its lab has the learner write; `path` and `line` say where."""

    def __init__(self, message: str, path: Path, line: int) -> None:
        super().__init__(message, path=str(path))
        self.line = line


class Answers:
    """The objects and modules that `builds` names; `KeyError` or `AttributeError` where one is not there."""

    def __init__(self, builds: Sequence[str]) -> None:
        self.objects: list[tuple[object, str]] = []
        self.modules: list[str] = []
        for entry in builds:
            module, _, name = entry.partition(":")
            found: object = importlib.import_module(module)
            if not name:
                self.modules.append(module)
                continue
            for part in name.split("."):
                found = getattr(found, part)
            self.objects.append((found, name))
        self.packages = {entry.split(":")[0].split(".")[0] for entry in builds}

    def name_of(self, found: object) -> str | None:
        """What the learner is to write, if `found` is that."""
        for answer, name in self.objects:
            if found is answer:
                return name
        if isinstance(found, ModuleType):
            home = found.__name__
        elif isinstance(found, FunctionType | type):
            home = found.__module__
        else:
            return None
        for module in self.modules:
            if home == module or home.startswith(module + "."):
                return f"what {module} holds"
        return None


def refuse_the_answer(module: ModuleType, path: Path, folder: Path) -> None:
    """Raise AnswerImportedError if `module`, loaded from `path`, has an answer of the lab in `folder`."""
    readme = folder / "README.md"
    values = front_matter(readme.read_text(encoding="utf-8")) if readme.is_file() else {}
    if not (builds := values.get("builds")):
        return
    answers = Answers(builds)
    tree = ast.parse(path.read_bytes())
    found = [*_written(tree, answers), *_there(module, answers)]
    if found:
        line, answer, how = found[0]
        lab = f"lab {values['phase']:02}-{values['lab']:02}"
        raise AnswerImportedError(f"{lab} has you write {answer}; {how}", path, line)


def _written(tree: ast.Module, answers: Answers) -> Iterator[tuple[int, str, str]]:
    """The answers that the imports of `tree` bring in, or that are reached through them."""
    bound: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module, package = _module(alias.name, answers), alias.name.split(".")[0]
                bound[alias.asname or package] = (
                    module if alias.asname else _module(package, answers)
                )
                if answer := answers.name_of(module):
                    yield node.lineno, answer, f"{alias.name} is imported"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            source = _module(node.module, answers)
            for alias in node.names:
                found = getattr(source, alias.name, None)
                if found is None and source is not None:
                    found = _module(f"{node.module}.{alias.name}", answers)
                bound[alias.asname or alias.name] = found
                if answer := answers.name_of(found):
                    what = "it" if alias.name == answer else alias.name
                    yield node.lineno, answer, f"{what} is imported from {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (answer := answers.name_of(_value(node, bound))):
            yield node.lineno, answer, f"{ast.unparse(node)} is the engine's own"


def _module(name: str, answers: Answers) -> ModuleType | None:
    """The module, if it is of a package that answers come from, and there."""
    if name.split(".")[0] in answers.packages:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _value(node: ast.expr, bound: dict[str, object]) -> object:
    """What `a.b.c` stands for, where `a` was imported."""
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, bound), node.attr, None)
    return bound.get(node.id) if isinstance(node, ast.Name) else None


def _there(module: ModuleType, answers: Answers) -> Iterator[tuple[int, str, str]]:
    """The answers among the names of `module` and of its classes, however they came there."""
    for name, found in vars(module).items():
        if answer := answers.name_of(found):
            yield 1, answer, f"{name} is the engine's own"
        elif isinstance(found, type) and found.__module__ == module.__name__:
            for attribute in dir(found):
                if answer := answers.name_of(getattr(found, attribute, None)):
                    yield 1, answer, f"{name}.{attribute} is the engine's own"
