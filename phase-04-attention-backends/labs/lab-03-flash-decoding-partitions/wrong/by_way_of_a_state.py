"""Outputs are merged by making states of them, and an output of the state.

It is right to many places. But it goes from the natural logarithm to powers of two and back, and the
kernel that does this work in vLLM has neither an m nor an l: two logarithms say how much each output weighs.

Refused by `test_merge_outputs`.
"""

from course.learner.edited import edited

CHANGE = """
merge_outputs
- return out_a * share_a + out_b * share_b, lse
+ return to_lse(merge(from_lse(out_a, lse_a), from_lse(out_b, lse_b)))
"""

exec(edited(__file__, CHANGE))
