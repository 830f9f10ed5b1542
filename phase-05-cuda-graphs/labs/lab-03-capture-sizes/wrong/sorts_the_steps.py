"""The steps are sorted in place.

They are the caller's, who goes on to ask in which order the rungs were visited.

Refused by `test_the_steps_stay_in_their_order`.
"""

from course.learner.edited import edited

CHANGE = """
best_sizes
- counts = sorted(Counter(steps).items())
+ steps.sort()
+ counts = list(Counter(steps).items())
"""

exec(edited(__file__, CHANGE))
