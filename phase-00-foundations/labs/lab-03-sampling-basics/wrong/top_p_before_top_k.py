"""top_p runs before top_k.

Each step renormalises what the one before has left, so the order shows: of 0.4, 0.3, 0.2, 0.1 with
k = 2 and p = 0.5, top_k first leaves 4/7 and 3/7, and 4/7 alone holds p; top_p first leaves two tokens
and top_k then keeps both. vLLM's order is temperature, min_p, top_k, top_p.

Refused by `test_the_steps_come_in_vllms_order`.
"""

from __future__ import annotations

from course.learner.labs import load_solution

solution = load_solution(__file__)


def sampling_probs(logits, temp, min_p, k, p):  # type: ignore[no-untyped-def]
    logits = solution.apply_temperature(logits, temp)
    logits = logits if min_p is None else solution.apply_min_p(logits, min_p)
    logits = logits if p is None else solution.apply_top_p(logits, p)
    logits = logits if k is None else solution.apply_top_k(logits, k)
    return solution.softmax(logits)


solution.sampling_probs = sampling_probs


def __getattr__(name: str) -> object:
    return getattr(solution, name)
