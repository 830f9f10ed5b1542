"""The price of a salt is taken against no caching at all.

Who has the same salt still shares. What salts cost is what is computed with them and would not be
without.

Refused by `test_price_of_salts`.
"""

from course.learner.edited import edited

CHANGE = """
price_of_salts
- return sum(scheduled_tokens(workload, block_size, True)) - sum(
+ return sum(scheduled_tokens(workload, block_size, False)) - sum(
"""

exec(edited(__file__, CHANGE))
