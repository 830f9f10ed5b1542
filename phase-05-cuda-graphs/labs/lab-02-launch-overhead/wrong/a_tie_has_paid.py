"""It counts a tie as a gain.

After that many steps both have launched equally often. It takes one more to be ahead.

Refused by `test_a_tie_has_not_paid`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- return passes * eager // saved + 1
+ return max(1, -(-passes * eager // saved))
"""

exec(edited(__file__, CHANGE))
