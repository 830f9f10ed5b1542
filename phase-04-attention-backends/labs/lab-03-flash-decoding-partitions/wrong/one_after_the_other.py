"""The states are merged one after the other into the first.

The result is the same, that is what you have proved. But it takes as many rounds as there are states, and
nobody can help. Pair by pair it takes the logarithm of that.

Refused by `test_merge_tree`.
"""

from course.learner.edited import edited

CHANGE = """
merge_tree
- pairs = [merge(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
- level = pairs + level[2 * len(pairs) :]
+ level = [merge(level[0], level[1]), *level[2:]]
"""

exec(edited(__file__, CHANGE))
