"""Lab 08-04: the oracle's recorded seconds, and what the README says of the servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from course.learner.labs import load_module

[LAB] = (Path(__file__).parents[2] / "phase-08-speculative-decoding" / "labs").glob("lab-04-*")
support = load_module(LAB / "support.py", "lab_08_04_support")
solution = load_module(LAB / "solution.py", "lab_08_04_solution")


@pytest.mark.parametrize("name", ["Llama, EAGLE", "Mixtral, EAGLE"])
def test_the_oracles_seconds_are_what_the_simulator_takes(name: str) -> None:
    """`python show.py --record` writes them; of the other workloads the page shows what follows."""
    parts = support.HELD_OUT["one user does"]
    found = support.ask_oracle(solution, support.servers()[name], parts)
    assert found == pytest.approx(support.recorded()[f"{name}: one user does"])


def test_the_page_shows_what_the_script_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of output; times are virtual, so it is the same on every machine."""
    monkeypatch.syspath_prepend(str(LAB))
    monkeypatch.setattr(sys, "argv", ["show.py"])
    monkeypatch.setenv("LAB_IMPL", "solution")
    monkeypatch.delitem(sys.modules, "support", raising=False)
    load_module(LAB / "show.py", "lab_08_04_show").main()
    monkeypatch.delitem(sys.modules, "support", raising=False)
    assert capsys.readouterr().out.strip() in (LAB / "README.md").read_text(encoding="utf-8")


def test_the_sentences_below_it() -> None:
    """153 rows, an acceptance length of 1.47, and what one draft token brings to 128 requests."""
    llama = support.servers()["Llama, EAGLE"]
    assert int(llama["dense_s"] / llama["row_s"]) == 153
    assert round(1e3 * llama["dense_s"], 3) == 7.877
    assert round(1e6 * llama["row_s"], 2) == 51.48
    poems = solution.unconditional_rates(list(support.TEXTS["poems"]))[:3]
    assert round(solution.expected_tokens(poems), 2) == 1.47
    chat = solution.unconditional_rates(list(support.TEXTS["chat"]))
    server = solution.Server(**llama)
    assert solution.speedup(server, chat[:3], 128, 500) < 1
    assert solution.speedup(server, chat[:1], 128, 500) > 1
