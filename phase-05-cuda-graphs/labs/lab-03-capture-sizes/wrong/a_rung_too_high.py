"""A step of exactly a rung runs as the next one.

A step of 40 fits on 40. Which of the two bisections finds it?

Refused by `test_the_lowest_rung_that_holds_it`.
"""

from course.learner.edited import edited

CHANGE = """
padded
- place = bisect_left(sizes, num_tokens)
+ place = bisect_left(sizes, num_tokens + (num_tokens < max(sizes, default=0)))
"""

exec(edited(__file__, CHANGE))
