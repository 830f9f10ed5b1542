"""Finding the classes of logits processors, and making one of each.

Mirrors `build_logitsprocs` and what it calls in `vllm/v1/sample/logits_processor/__init__.py`. A class
need not be a subclass of ours, so that a file written for vLLM need not be written again: it must have
the interface's methods. It stands beside the package `logits_processor`, which a run without processors
does not load.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import TYPE_CHECKING, Any

from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sample.logits_processor.interface import LogitsProcessor
    from mini_vllm.sample.logits_processor.state import LogitsProcessors
    from mini_vllm.sampling_params import SamplingParams

LOGITSPROCS_GROUP = "vllm.logits_processors"
"""The group of entry points in which a package announces its processors."""
_METHODS = ("apply", "is_argmax_invariant", "update_state")


@cache
def installed_logitsprocs() -> EntryPoints:
    """The entry points of the group, sought once: it takes milliseconds, twice per engine, to read what
    every installed package announces, and nothing is installed while a program runs."""
    return entry_points(group=LOGITSPROCS_GROUP)


def load_logitsprocs(
    logits_processors: Sequence[str | type[Any]] | None,
) -> list[type[LogitsProcessor]]:
    """The installed ones, then those given: classes, or their names as `module:Class`.

    Raises ValueError for a name of another form, for one that cannot be imported (a RuntimeError at the
    pin), and for something that is no processor
    (`vllm/v1/sample/logits_processor/__init__.py:158 _load_custom_logitsprocs`).
    """
    classes: list[type[LogitsProcessor]] = []
    for entry_point in installed_logitsprocs():
        try:
            classes.append(_check(entry_point.load(), entry_point.name))
        except ImportError as error:
            raise ValueError(f"logits processor plug-in {entry_point.name}: {error}") from error
    for given in logits_processors or ():
        classes.append(_check(_load(given) if isinstance(given, str) else given, given))
    return classes


def _load(name: str) -> Any:
    module_path, colon, qualname = name.partition(":")
    if not (module_path and colon and qualname):
        raise ValueError(f"a logits processor is named as module:Class, got {shorten_repr(name)}")
    try:
        found: Any = importlib.import_module(module_path)
        for attribute in qualname.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"logits processor {shorten_repr(name)} cannot be loaded: {error}"
        ) from error
    return found


def _check(found: Any, name: object) -> type[LogitsProcessor]:
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or missing:
        raise ValueError(
            f"a logits processor must be a class with the methods {', '.join(_METHODS)}, got "
            f"{shorten_repr(name)}" + (f" without {', '.join(missing)}" if missing else "")
        )
    return found


def build_logitsprocs(
    config: Any, logits_processors: Sequence[str | type[Any]] | None
) -> LogitsProcessors | None:
    """One processor of each class that is installed or given; None where there is no class.

    With speculation none: the installed ones stay away, and ValueError is raised for one that is given
    (`vllm/v1/sample/logits_processor/__init__.py:184 build_logitsprocs`).
    """
    if config.speculative_config is not None:
        if logits_processors:
            raise ValueError(
                "logits_processors cannot be used with a speculative_config, got "
                f"{', '.join(str(each) for each in logits_processors)}"
            )
        return None
    classes = load_logitsprocs(logits_processors)
    if not classes:
        return None
    from mini_vllm.sample.logits_processor.state import LogitsProcessors

    return LogitsProcessors(cls(config, "cpu", False) for cls in classes)


def validate_logits_processors_parameters(
    classes: Sequence[type[LogitsProcessor]], sampling_params: SamplingParams
) -> None:
    """Ask every class whether it can serve a request; raises what it raises."""
    for cls in classes:
        validate = getattr(cls, "validate_params", None)
        if validate is not None:
            validate(sampling_params)
