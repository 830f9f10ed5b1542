"""The second's seconds by the first's.

Twice as fast is then a half.

Refused by `test_a_round_has_its_own_ratio`.
"""

from course.learner.edited import edited

CHANGE = """
speedup
- ratios = [before / after for before, after in rounds]
+ ratios = [after / before for before, after in rounds]
"""

exec(edited(__file__, CHANGE))
