"""The log-sum-exp is taken to be the largest score.

It is near, since l is at least 1. But a part with 200 keys of equal score weighs 200 times as much as a part
with one, and that is what l was for: log2(l) belongs to it.

Refused by `test_output_and_lse`.
"""

from course.learner.edited import edited

CHANGE = """
to_lse
- return finish(state), (state.m + log2_l) / LOG2_E
+ return finish(state), state.m / LOG2_E
"""

exec(edited(__file__, CHANGE))
