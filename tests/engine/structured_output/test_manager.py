"""The manager, with grammars that are scripted: compiled in the background, filled in order."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import numpy as np
import pytest

from mini_vllm.structured_output import manager as module
from mini_vllm.structured_output.backend_types import (
    BackendConfig,
    Bitmask,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.manager import StructuredOutputManager, choose_backend
from mini_vllm.structured_output.request import StructuredOutputRequest
from mini_vllm.utils.structured_params import StructuredOutputsParams

VOCAB, END = 64, 63


class Counting(StructuredOutputGrammar):
    """Allows token `len(history)` next, and the end after `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length, self.history = length, list[int]()

    def _next(self) -> int:
        return END if len(self.history) >= self.length else len(self.history)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            if self.is_terminated() or token != self._next():
                return False
            self.history.append(token)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return []

    def rollback(self, num_tokens: int) -> None:
        del self.history[len(self.history) - num_tokens :]

    def fill_bitmask(self, bitmask: Bitmask, batch_index: int) -> None:
        assert not self.is_terminated()
        bitmask[batch_index] = 0
        bitmask.view(np.uint32)[batch_index, self._next() // 32] = np.uint32(1 << self._next() % 32)

    def is_terminated(self) -> bool:
        return END in self.history

    def reset(self) -> None:
        self.history.clear()


class Panic(BaseException):
    """What a library written in Rust raises."""


class Scripted(StructuredOutputBackend):
    gate = threading.Event()

    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> Counting:
        if grammar_spec == "slow":
            assert self.gate.wait(30)
        if grammar_spec == "panic":
            raise Panic("deep inside")
        if grammar_spec == "bad":
            raise ValueError("structured_outputs.regex 'bad': refused")
        if grammar_spec == "terse":
            raise ValueError("character 1: no")
        return Counting(2)

    def destroy(self) -> None:
        pass


class Other(Scripted):
    pass


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch):
    fake = ModuleType(f"{module.__package__}.scripted")
    fake.Scripted, fake.Other = Scripted, Other  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setitem(module._MODULES, "native", ("scripted", "Scripted"))
    monkeypatch.setitem(module._MODULES, "guidance", ("scripted", "Other"))
    made = []

    def build(max_num_seqs: int = 4, drafts: int = 0) -> StructuredOutputManager:
        config = BackendConfig(num_speculative_tokens=drafts)
        made.append(StructuredOutputManager(range(VOCAB), VOCAB, max_num_seqs, config))  # type: ignore[arg-type]
        return made[-1]

    Scripted.gate.clear()
    yield build
    Scripted.gate.set()
    for manager in made:
        manager.shutdown()


def ask(
    manager: StructuredOutputManager, rule: str, backend: str = "native"
) -> StructuredOutputRequest:
    params = StructuredOutputsParams(regex=rule)
    params._backend = backend
    request = StructuredOutputRequest(params)
    manager.grammar_init(request)
    return request


def settle(request: StructuredOutputRequest) -> StructuredOutputRequest:
    future = request._grammar
    future.exception(timeout=30)  # type: ignore[union-attr]
    assert request.is_settled
    return request


def tokens(row: np.ndarray) -> list[int]:
    return np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist()


def test_a_grammar_is_compiled_in_the_background(make) -> None:
    manager = make()
    slow, quick = ask(manager, "slow"), None
    assert not slow.is_settled
    assert slow.grammar is None
    with pytest.raises(RuntimeError, match="'a' was scheduled before its grammar was ready"):
        manager.grammar_bitmask({"a": slow}, ["a"], {})
    Scripted.gate.set()
    quick = settle(ask(manager, "quick"))
    assert settle(slow).is_grammar_ready
    assert quick.grammar is not slow.grammar


def test_in_the_foreground_the_grammar_is_there_at_once(make) -> None:
    manager = make()
    manager.in_background = False
    Scripted.gate.set()
    request = ask(manager, "a")
    assert request.future is None
    assert request.grammar is not None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("bad", "structured_outputs.regex 'bad': refused"),
        ("terse", "structured_outputs.regex 'terse': character 1: no"),
        ("panic", "structured_outputs.regex 'panic': native failed: Panic deep inside"),
    ],
)
def test_a_failed_compile_stays_with_its_request(make, rule: str, message: str) -> None:
    manager = make()
    failed, fine = settle(ask(manager, rule)), settle(ask(manager, "fine"))
    assert str(failed.error) == message
    again = ask(manager, rule)
    again._grammar.exception(timeout=30)
    assert again.error is not None, "the error can be asked for first"
    assert not failed.is_grammar_ready
    assert failed.is_settled, "asking again changes nothing"
    assert fine.error is None
    assert manager.grammar_bitmask({"b": fine}, ["b"], {}) is not None


def test_every_request_has_the_backend_that_its_check_chose(make) -> None:
    manager = make()
    settle(ask(manager, "a", "native"))
    settle(ask(manager, "a", "guidance"))
    assert {name: type(b) for name, b in manager._backends.items()} == {
        "native": Scripted,
        "guidance": Other,
    }
    with pytest.raises(ValueError, match="no structured-output backend was chosen: None"):
        manager.grammar_init(StructuredOutputRequest(StructuredOutputsParams(regex="a")))


def test_a_row_for_each_draft_and_one_more_and_the_state_is_back(make) -> None:
    manager = make(drafts=4)
    a, b = settle(ask(manager, "a")), settle(ask(manager, "b"))
    b.grammar.accept_tokens("b", [0])
    rows = manager.grammar_bitmask({"a": a, "b": b}, ["b", "a"], {"a": [0, 1, END], "b": [1]})
    assert [tokens(row) for row in rows] == [[1], [END], [0], [1], [END], list(range(VOCAB))]
    assert a.grammar.history == []
    assert b.grammar.history == [0]


def test_rows_behind_a_placeholder_are_free(make) -> None:
    manager = make(drafts=4)
    a = settle(ask(manager, "a"))
    rows = manager.grammar_bitmask({"a": a}, ["a"], {"a": [0, -1, -1]})
    free = list(range(VOCAB))
    assert [tokens(row) for row in rows] == [[0], [1], free, free]
    assert a.grammar.history == []


def test_a_barred_draft_is_an_error_that_names_it(make) -> None:
    manager = make(drafts=1)
    a = settle(ask(manager, "a"))
    with pytest.raises(RuntimeError, match="draft token 9 of request 'a' is barred"):
        manager.grammar_bitmask({"a": a}, ["a"], {"a": [9]})


def test_no_rule_no_rows(make) -> None:
    assert make().grammar_bitmask({}, [], {}) is None


def test_the_rows_of_a_step_are_its_own(make) -> None:
    manager = make()
    a = settle(ask(manager, "a"))
    first = manager.grammar_bitmask({"a": a}, ["a"], {})
    a.grammar.accept_tokens("a", [0])
    manager.grammar_bitmask({"a": a}, ["a"], {})
    assert tokens(first[0]) == [0]


@pytest.mark.parametrize("count", [128, 129, 145])
def test_above_128_requests_groups_of_16_fill_the_same_rows(make, count: int, monkeypatch) -> None:
    manager = make(max_num_seqs=200)
    groups: list[int] = []
    fill = manager._fill
    monkeypatch.setattr(manager, "_fill", lambda f: (groups.append(len(f)), fill(f))[1])
    requests = {}
    for number in range(count):
        requests[f"r{number}"] = request = settle(ask(manager, "a"))
        request.grammar.accept_tokens("r", [0, 1, END][: number % 4])
    rows = manager.grammar_bitmask(requests, list(requests), {})
    assert [tokens(row) for row in rows] == [
        [[0], [1], [END], list(range(VOCAB))][number % 4] for number in range(count)
    ]
    full, rest = divmod(count, 16)
    expected = [16] * full + [rest] * bool(rest) if count > 128 else [1] * count
    assert sorted(groups, reverse=True) == expected


def test_without_the_extra_auto_is_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_is_installed", lambda library: False)
    params = StructuredOutputsParams(regex="a")
    assert choose_backend(params) == params._backend == "native"
    assert params._backend_was_auto
    with pytest.raises(ValueError, match=r"must be one of auto, native, .*got 'outlines'"):
        choose_backend(params, "outlines")


@pytest.mark.parametrize(
    ("backend", "library"), [("xgrammar", "xgrammar"), ("guidance", "llguidance")]
)
def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, backend: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f"backend '{backend}' needs {library}.*--extra grammar"):
        choose_backend(StructuredOutputsParams(regex="a"), backend)
