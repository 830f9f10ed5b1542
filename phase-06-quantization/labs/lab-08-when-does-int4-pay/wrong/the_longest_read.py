"""It looks for the part that reads longest.

A part is as long as the longer of its two halves.

Refused by `test_what_a_step_waits_for`.
"""

from course.learner.edited import edited

CHANGE = """
regime
- longest = max(found, key=lambda name: max(found[name]))
+ longest = max(found, key=lambda name: found[name][0])
"""

exec(edited(__file__, CHANGE))
