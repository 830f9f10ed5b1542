"""The size of a part is rounded down.

With 13 keys in 3 parts of 4 the last key is in none. Round up: the last part is short, or there are empty
ones.

Refused by `test_partitioned_is_attention`.
"""

from course.learner.edited import edited

CHANGE = """
partitioned_attention
- size = -(-len(key) // num_splits)
+ size = max(1, len(key) // num_splits)
"""

exec(edited(__file__, CHANGE))
