"""A step runs as the rung below it.

A graph of 32 rows has no place for the 33rd request.

Refused by `test_the_lowest_rung_that_holds_it`.
"""

from course.learner.edited import edited

CHANGE = """
padded
- place = bisect_left(sizes, num_tokens)
- return sizes[place] if place < len(sizes) else num_tokens
+ place = max(0, bisect_left(sizes, num_tokens + 1) - 1)
+ return sizes[place] if sizes and num_tokens <= sizes[-1] else num_tokens
"""

exec(edited(__file__, CHANGE))
