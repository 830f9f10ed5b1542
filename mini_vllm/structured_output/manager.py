"""The engine's grammars: which backend, compiled when, filled how.

Mirrors `vllm/v1/structured_output/__init__.py`, with one difference on purpose. There the first request with
a rule decides on the engine's only backend, and a later one that another backend checked may end the engine
(`vllm/v1/structured_output/__init__.py:115 StructuredOutputManager.grammar_init`). Here every request is
compiled by the backend that its check chose. Left out: reasoning.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from mini_vllm.config.structured_outputs import BACKENDS
from mini_vllm.structured_output.backend_types import (
    BackendConfig,
    Bitmask,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.features import unsupported_by_guidance
from mini_vllm.structured_output.request import (
    StructuredOutputRequest,
    describe_rule,
    get_structured_output_key,
)
from mini_vllm.tokenizer.tokenizer import Tokenizer
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.structured_params import StructuredOutputsParams
from mini_vllm.utils.timed_calls import TimedCalls
from mini_vllm.utils.untrusted import one_line, shorten_repr

PARALLEL_THRESHOLD = 128
"""Rows are filled by several threads only above so many requests
(`vllm/v1/structured_output/__init__.py:61 in StructuredOutputManager.__init__`)."""
PARALLEL_BATCH_SIZE = 16
"""Requests that one of these threads takes at a time."""
COMPILE_SECONDS = 10
"""How long a rule may take to compile. The libraries let other threads run meanwhile, but cannot be stopped.
So the thread is then left to itself, and a neighbour's steps share the processors with it until it ends.
Upstream has no limit."""
_MOST_GIVEN_UP = 2

_MODULES = {
    "native": ("backend_native", "NativeBackend"),
    "xgrammar": ("backend_xgrammar", "XgrammarBackend"),
    "guidance": ("backend_guidance", "GuidanceBackend"),
}


@dataclass(frozen=True)
class _Fill:
    grammar: StructuredOutputGrammar
    row: int


class StructuredOutputManager:
    """Compiles rules in the background and fills the rows of a step
    (`vllm/v1/structured_output/__init__.py:36 StructuredOutputManager`).

    Args:
        tokenizer: the checkpoint's.
        vocab_size: the model's.
        max_num_seqs: most requests in a step.
        config: what backends read.
        in_background: False: `grammar_init` compiles before it returns, for ranks whose schedulers must all
            decide the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        max_num_seqs: int,
        config: BackendConfig | None = None,
        in_background: bool = True,
    ) -> None:
        self.in_background = in_background
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.config = config or BackendConfig()
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._lock = threading.Lock()
        cpus = os.cpu_count() or 1
        # Compiling takes a processor, so there are no more threads than half of them.
        self._compilers = TimedCalls(
            max(1, (cpus + 1) // 2), COMPILE_SECONDS, _MOST_GIVEN_UP, "grammar-compile"
        )
        self._fillers: ThreadPoolExecutor | None = None
        if max_num_seqs > PARALLEL_THRESHOLD:
            self._fillers = ThreadPoolExecutor(max(1, min(cpus // 2, 8)), "grammar-fill")
        rows = max_num_seqs * (1 + self.config.num_speculative_tokens)
        width = -(-max(vocab_size, len(tokenizer)) // 32)
        self._bitmask: Bitmask = np.full((rows, width), -1, dtype=np.int32)

    def backend(self, name: str) -> StructuredOutputBackend:
        """The backend of this name, made when it is first asked for."""
        with self._lock:  # two requests' compilations may ask at once
            if name not in self._backends:
                module, kind = _MODULES[name]
                made = getattr(importlib.import_module(f"{__package__}.{module}"), kind)
                self._backends[name] = made(self.tokenizer, self.vocab_size, self.config)
            return self._backends[name]

    def grammar_init(self, request: StructuredOutputRequest) -> None:
        """Start to compile a request's rule; `request.is_settled` says when that is over."""
        name = request.params._backend
        if name not in _MODULES:
            raise ValueError(f"no structured-output backend was chosen: {shorten_repr(name)}")
        key = request.structured_output_key
        too_long = ValueError(
            f"{describe_rule(key)}: not compiled in time. A rule has {COMPILE_SECONDS} seconds, and none is "
            "begun while two that took longer still run"
        )
        future = self._compilers.submit(lambda: self._compile(name, key), too_long)
        request.grammar = future
        if not self.in_background:
            wait([future])

    def _compile(self, name: str, key: StructuredOutputKey) -> StructuredOutputGrammar:
        try:
            return self.backend(name).compile_grammar(*key)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what a library written in Rust raises is no Exception
            rule, reason = describe_rule(key), one_line(str(error))
            if isinstance(error, ValueError):
                raise ValueError(reason if rule in reason else f"{rule}: {reason}") from error
            raise ValueError(f"{rule}: {name} failed: {type(error).__name__} {reason}") from error

    def grammar_bitmask(
        self,
        requests: Mapping[str, StructuredOutputRequest],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> Bitmask | None:
        """The rows of a step, in the order of the ids; None where no request has a rule
        (`vllm/v1/structured_output/__init__.py:204 StructuredOutputManager.grammar_bitmask`).

        A request has a row for each draft token and one for the token after them. To fill these the
        grammar moves on by the drafts and back again. A draft of -1 is a place that is not known yet: its
        row is filled, the rows behind it are free.
        """
        if not structured_output_request_ids:
            return None
        grammars = []
        for req_id in structured_output_request_ids:
            grammar = requests[req_id].grammar
            if grammar is None:
                raise RuntimeError(f"request {req_id!r} was scheduled before its grammar was ready")
            grammars.append(grammar)
        if self._fillers is not None and (
            len(grammars) > PARALLEL_THRESHOLD and self.config.num_speculative_tokens == 0
        ):
            fills = [_Fill(grammar, row) for row, grammar in enumerate(grammars)]
            groups = [
                fills[start : start + PARALLEL_BATCH_SIZE]
                for start in range(0, len(fills), PARALLEL_BATCH_SIZE)
            ]
            futures: list[Future[None]] = [self._fillers.submit(self._fill, g) for g in groups]
            for future in futures:
                future.result()
            return self._bitmask[: len(fills)].copy()

        row = 0
        for req_id, grammar in zip(structured_output_request_ids, grammars, strict=True):
            drafts = scheduled_spec_decode_tokens.get(req_id, ())
            row = self._fill_with_drafts(req_id, grammar, drafts, row)
        # A copy: the next step's rows may be filled before this one's were applied.
        return self._bitmask[:row].copy()

    def _fill(self, fills: Sequence[_Fill]) -> None:
        for fill in fills:
            if fill.grammar.is_terminated():
                self._bitmask[fill.row] = -1
            else:
                fill.grammar.fill_bitmask(self._bitmask, fill.row)

    def _fill_with_drafts(
        self, req_id: str, grammar: StructuredOutputGrammar, drafts: Sequence[int], row: int
    ) -> int:
        """Fill one request's rows, from `row` on. Returns the row after them."""
        advanced, bound = 0, True
        for token in itertools.chain(drafts, (-1,)):
            if bound:
                self._fill((_Fill(grammar, row),))
            else:
                self._bitmask[row] = -1
            row += 1
            bound = bound and token != -1
            if bound and not grammar.is_terminated():
                if not grammar.accept_tokens(req_id, [token]):
                    raise RuntimeError(
                        f"draft token {token} of request {req_id!r} is barred: drafts must be validated first"
                    )
                advanced += 1
        if advanced:
            grammar.rollback(advanced)
        return row

    def shutdown(self) -> None:
        """End the threads, without waiting for what is still compiled, and give up the backends."""
        self._compilers.shutdown()
        if self._fillers is not None:
            self._fillers.shutdown(wait=False)
        for backend in self._backends.values():
            backend.destroy()
        self._backends.clear()


def check_installed(backend: str) -> None:
    """Raises ValueError where the library of this backend is missing."""
    library = {"xgrammar": "xgrammar", "guidance": "llguidance"}.get(backend)
    if library is not None and not _is_installed(library):
        raise ValueError(
            f"structured_outputs_config.backend={backend!r} needs {library}, which is not installed: "
            f"{how_to_get('grammar')}"
        )


def load_libraries(backend: str) -> None:
    """Import what compiles rules. It may take seconds, which are not to count as the first rule's. What is
    missing is left to `choose_backend` to say."""
    for name in _MODULES if backend == "auto" else (backend,):
        module = importlib.import_module(f"{__package__}.{_MODULES[name][0]}")
        with contextlib.suppress(ImportError):
            getattr(module, "_library", lambda: None)()


def choose_backend(params: StructuredOutputsParams, backend: str = "auto") -> str:
    """Check a rule, and write which backend compiles it to `params`
    (`vllm/sampling_params.py:794 SamplingParams._validate_structured_outputs`).

    `auto` takes xgrammar, or guidance where that refuses the rule, as upstream does; upstream's third
    choice, outlines, is not here. Without the extra `grammar` it takes the engine's own backend.

    Raises ValueError that names the rule, ImportError where the wanted backend's library is missing.
    """
    if backend not in BACKENDS:
        raise ValueError(
            f"structured-output backend must be one of {', '.join(BACKENDS)}, got {shorten_repr(backend)}"
        )
    key = get_structured_output_key(params)
    params._backend_was_auto = backend == "auto"
    if backend == "auto":
        params._backend = _choose(key)
    else:
        _validate(backend, key)
        params._backend = backend
    return params._backend


def _choose(key: StructuredOutputKey) -> str:
    if not _is_installed("xgrammar"):
        if not _is_installed("llguidance"):
            _validate("native", key)
            return "native"
    else:
        try:
            _validate("xgrammar", key)
            return "xgrammar"
        except ValueError:
            kind, spec = key
            if kind is StructuredOutputOptions.JSON and unsupported_by_guidance(json.loads(spec)):
                raise  # upstream goes on to outlines
    _validate("guidance", key)
    return "guidance"


def _is_installed(library: str) -> bool:
    return find_spec(library) is not None


@functools.lru_cache(maxsize=32)
def _validate(backend: str, key: StructuredOutputKey) -> None:
    """The backend's own check. The native one reads the rule as its compiler does, and makes no automaton.

    What passed is known for a while: a request of a thousand prompts has its one rule checked once.
    """
    module, _ = _MODULES[backend]
    check = getattr(
        importlib.import_module(f"{__package__}.{module}"), f"validate_{backend}_grammar"
    )
    try:
        check(*key)
    except (KeyboardInterrupt, SystemExit, ImportError):
        raise
    except BaseException as error:  # what a library written in Rust raises is no Exception
        rule, reason = describe_rule(key), one_line(str(error))
        raise ValueError(reason if rule in reason else f"{rule}: {reason}") from error
