"""What phase 12's guide says of Bo's help desk, held against the code."""

from __future__ import annotations

import json
from collections import Counter
from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.structured_output.automata.dfa import DEAD, Dfa
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.manager import StructuredOutputManager, choose_backend
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.tokenizer.tokenizer import Tokenizer
from mini_vllm.utils.structured_params import StructuredOutputsParams

PHASE = ROOT / "phase-12-structured-outputs"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")


@pytest.fixture(scope="module")
def desk() -> ModuleType:
    return load_module(PHASE / "desk.py", "phase_12_desk")


def test_four_tickets_in_a_hundred() -> None:
    assert round(100 * (1 - 0.999**40)) == 4
    assert "A ticket has 40 tokens, so 4 tickets in 100 have a wrong one" in GUIDE
    assert "one in 25 cannot be read" in (ROOT / "README.md").read_text("utf-8")


def test_a_part_number_has_eight_states(desk: ModuleType) -> None:
    automaton = Dfa(parse_regex(desk.PART["regex"]))
    assert len(automaton) - (DEAD == 0) == 8
    assert "There are eight such places" in GUIDE
    assert f"Here with a vocabulary of {len(desk.VOCABULARY)} tokens" in GUIDE


def test_a_row_of_qwen3() -> None:
    words = -(-151_936 // 32)
    assert f"a row has {words:,} words, {4 * words / 1000:.0f} KB" in GUIDE


def test_the_ticket_is_valid_and_the_blanks_never_end(desk: ModuleType) -> None:
    ticket = json.loads(desk.ask("Ticket: ", desk.TICKET).text)
    assert list(ticket) == ["item", "urgent", "days"]
    assert 1 <= ticket["days"] <= 30
    run = desk.ask("Ticket: ", desk.TICKET, blanks=True)
    assert run.finish_reason == "length"
    assert sum(char in " \t\n\r" for char in run.text) > len(run.text) / 2


def test_the_mask_looks_one_token_ahead(desk: ModuleType) -> None:
    shares = desk.shares("The mail is a ", desk.KIND)
    assert sum(share.whole for share in shares.values()) == pytest.approx(1)
    assert sum(share.masked for share in shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda word: shares[word].whole) == "question"
    assert max(shares, key=lambda word: shares[word].masked) == "repair"


def test_what_backends_make_of_the_official_suite() -> None:
    table = ROOT / "tests/engine/structured_output/data/json_suite.tsv"
    rows = [line.split("\t") for line in table.read_text("utf-8").splitlines()[1:]]
    assert f"has {len(rows)} groups of cases" in GUIDE
    for column, words in (
        (3, "enforces {enforced} of them and lets invalid documents pass in {passed}"),
        (
            4,
            "enforces {enforced}, lets invalid ones pass in {passed}, and refuses most of the rest",
        ),
    ):
        kinds = Counter(row[column].split()[0] for row in rows)
        passed = kinds["ignored"] + kinds["misread"]
        assert words.format(enforced=kinds["enforced"], passed=passed) in GUIDE


def test_measured_shares() -> None:
    rows = json.loads((ROOT / "benchmarks/results/grammar.json").read_text("utf-8"))["rows"]
    share = {(row["engine"], row["backend"], row["bound"]): row["/ free"] for row in rows}
    ours, theirs = share["mini_vllm", "xgrammar", 64], share["vLLM", "xgrammar", 64]
    assert (
        f"`mini_vllm` runs at {ours:.2f} of its speed without rules and vLLM at {theirs:.2f}"
        in GUIDE
    )


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("schema", "broken", "xgrammar", "guidance"),
    [
        ({"type": "string", "maxLength": 2}, '"abc"', "enforced", "enforced"),
        ({"type": "integer", "maximum": 7}, "8", "enforced", "enforced"),
        ({"maxLength": 2}, '"abc"', "ignored", "enforced"),
        ({"maximum": 7}, "8", "ignored", "enforced"),
        ({"allOf": [{"minimum": 3}, {"maximum": 7}]}, "8", "ignored", "enforced"),
        ({"not": {"type": "integer"}}, "8", "ignored", "refused"),
        ({"if": {"type": "integer"}, "then": {"maximum": 7}}, "8", "ignored", "refused"),
        ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}', "ignored", "refused"),
    ],
)
def test_the_table_of_keywords(
    schema: dict[str, object], broken: str, xgrammar: str, guidance: str
) -> None:
    backends = {"xgrammar": xgrammar, "guidance": guidance}
    assert {name: judge_document(name, schema, broken) for name in backends} == backends


def judge_document(backend: str, schema: dict[str, object], broken: str) -> str:
    """What a backend makes of a schema and a document that breaks it."""
    params = StructuredOutputsParams(json=schema)
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    try:
        choose_backend(params, backend)
        manager = StructuredOutputManager(tokenizer, len(tokenizer), 1)
        grammar = manager.backend(backend).compile_grammar(*get_structured_output_key(params))
    except ValueError:
        return "refused"
    end = tokenizer.eos_token_id
    assert end is not None
    tokens = [*tokenizer.encode(broken, False), end]
    return "ignored" if grammar.accept_tokens("broken", tokens) else "enforced"
