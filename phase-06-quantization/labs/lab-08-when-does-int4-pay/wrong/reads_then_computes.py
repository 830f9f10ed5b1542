"""It adds reading and computing.

Within a kernel the two overlap, and the longer one counts.

Refused by `test_a_step_alone`.
"""

from course.learner.edited import edited

CHANGE = """
step_seconds
- return sum(max(both) for both in parts(card, model, scheme, step, kv_bytes).values())
+ return sum(map(sum, parts(card, model, scheme, step, kv_bytes).values()))
"""

exec(edited(__file__, CHANGE))
