"""Real vLLM and the engine draft by the same method: the same tokens, and the same drafts by the counters."""

from __future__ import annotations

import pytest

from course.parity import drafts
from course.parity.tokens import Comparison, compare, make_scenarios, report, run_comparison
from course.parity.tokens_run import Completion, Result
from mini_vllm.config.engine import DEFAULT_MODEL
from tests.engine.helpers.thorough import either


@pytest.mark.vllm
@pytest.mark.parametrize("method", drafts.METHODS)
def test_tokens_and_counters_equal_vllms(method: str) -> None:
    """Some prompts together, in chunks; some alone, on what is cached; some in a small pool."""
    spec = {"method": method, "num_speculative_tokens": 3, **drafts.METHODS[method]}
    found = run_comparison(str(DEFAULT_MODEL), 32, 8, 16, longest=200, speculative_config=spec)
    assert all(c.equal for c in found), report(found)
    assert all(c.drafts["accepted_tokens"][0] > 0 for c in found), report(found)


def test_drafts_change_no_token_of_the_shipped_model() -> None:
    """Every method, in a few prompts; `python -m course.parity.drafts` takes 200."""
    found = drafts.run_comparison(count=either(4, 8), max_tokens=either(4, 8))
    assert [c.name for c in found][:3] == ["ngram, together", "ngram, alone", "ngram, preempted"]
    assert len(found) == 15, "three methods, of which two also run ahead, three scenarios each"
    assert all(c.equal for c in found), report(found)
    assert all(c.drafts["draft_tokens"][0] for c in found if "ngram" not in c.name)


def test_scenarios_and_report_of_drafts() -> None:
    """The settings reach both engines' scenarios; the counts and their shares are printed."""
    spec = {"method": "ngram", "num_speculative_tokens": 2}
    scenarios = make_scenarios([[1, 2]] * 3, speculative_config=spec)
    assert all(scenario.settings["speculative_config"] == spec for scenario in scenarios)
    assert all("speculative_config" not in s.settings for s in make_scenarios([[1, 2]]))
    counts = {"drafts": [4], "draft_tokens": [8], "accepted_tokens": [3]}
    text = report([Comparison("alone", drafts=counts | {"accepted_tokens_per_pos": [2, 1]})])
    assert "4 drafts of 8 tokens, 3 accepted, by position [2, 1]: 50.0 %, 25.0 %" in text


def test_other_counters_are_a_mismatch() -> None:
    """Equal tokens do not hide that one engine accepted less."""
    (scenario, *_) = make_scenarios([[1, 2]])
    completion = Completion([5], [-0.1], [{5: -0.1, 6: -3.0}], "length", 0)
    mini = Result([completion], 0, 0.0, {"drafts": [4]})
    real = Result([completion], 0, 0.0, {"drafts": [5]})
    found = compare(scenario, mini, real)
    assert found.mismatches == ["drafts: [4] in mini_vllm, [5] in vLLM"]
