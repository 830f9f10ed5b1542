"""In a round with an odd number of states the last one is lost.

`zip` over every second state stops where a partner is missing. That state waits for the next round.

Refused by `test_merge_tree`.
"""

from course.learner.edited import edited

CHANGE = """
merge_tree
- level = pairs + level[2 * len(pairs) :]
+ level = pairs
"""

exec(edited(__file__, CHANGE))
