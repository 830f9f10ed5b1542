"""The first state is merged with the one behind the middle, as many a reduction on a GPU does it.

Merging may be done in any order, so the result is right and the rounds are as few. But neighbours were asked
for: whoever keeps the order of the keys needs the brackets to be free and no more, and can say which keys a
state between the rounds has seen.

Refused by `test_merge_tree`.
"""

from course.learner.edited import edited

CHANGE = """
merge_tree
- pairs = [merge(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
+ pairs = [merge(level[i], level[i + len(level) // 2]) for i in range(len(level) // 2)]
"""

exec(edited(__file__, CHANGE))
