"""A table of classes that are imported when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any


class LazyClasses(Mapping[str, Any]):
    """Classes by name, from import paths: a run of one model loads one
    (`vllm/model_executor/models/registry.py:809 _LazyRegisteredModel`).

    Args:
        paths: by name, the module and the class in it, joined by a dot.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)

    def __getitem__(self, name: str) -> Any:
        module, class_name = self._paths[name].rsplit(".", 1)
        return getattr(importlib.import_module(module), class_name)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
