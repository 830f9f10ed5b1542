"""The rungs are the most frequent counts, and the largest.

Neighbours share their padding: two frequent counts side by side want one rung, not two.

Refused by `test_no_ladder_is_better`.
"""

from course.learner.edited import edited

CHANGE = """
best_sizes
- counts = sorted(Counter(steps).items())
+ counts = sorted(Counter(steps).items())
+ if counts:
+     often = [rung for rung, _ in Counter(steps).most_common(n)]
+     return sorted({*often[: n - 1], counts[-1][0]})
"""

exec(edited(__file__, CHANGE))
