"""It looks for the part whose reading and computing add up to most.

The two overlap within a part, so a part is as long as the longer of them.

Refused by `test_what_a_step_waits_for`.
"""

from course.learner.edited import edited

CHANGE = """
regime
- longest = max(found, key=lambda name: max(found[name]))
+ longest = max(found, key=lambda name: sum(found[name]))
"""

exec(edited(__file__, CHANGE))
