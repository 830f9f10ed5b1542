"""The part with the largest difference is named.

Differences grow on their way through the layers, so the largest is found at the end, wherever the cause
is. Stop at the first.

Refused by `test_the_first_difference_and_not_the_largest`.
"""

from course.learner.edited import edited

CHANGE = """
first_difference
- for index, ((name, a), (_, b)) in enumerate(zip(alone, beside, strict=True)):
+ pairs = list(enumerate(zip(alone, beside, strict=True)))
+ pairs.sort(key=lambda pair: -np.abs(pair[1][0][1] - pair[1][1][1]).max())
+ for index, ((name, a), (_, b)) in pairs:
"""

exec(edited(__file__, CHANGE))
