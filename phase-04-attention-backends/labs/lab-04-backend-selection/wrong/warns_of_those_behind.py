"""The warning names those behind the chosen one, too.

They would not have been chosen, whatever the block size.

Refused by `test_a_block_size_costs_the_better_one`.
"""

from course.learner.edited import edited

CHANGE = """
select
- better = order[: order.index(valid[0])]
+ better = tuple(refused)
"""

exec(edited(__file__, CHANGE))
