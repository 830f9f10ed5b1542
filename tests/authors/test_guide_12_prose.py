"""What phase 12's guide says of Bo's help desk, held against the code."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.structured_output.automata.dfa import DEAD, Dfa
from mini_vllm.structured_output.automata.regex import parse_regex

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


def test_a_row_of_llama_3() -> None:
    words = -(-128_256 // 32)
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
