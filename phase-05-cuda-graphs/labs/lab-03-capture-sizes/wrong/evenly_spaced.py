"""The rungs stand at equal distances among the counts that occur.

vLLM's ladder is evenly spaced too, in stretches, because it knows nothing of the steps. Yours does.

Refused by `test_often_counts_more`.
"""

from course.learner.edited import edited

CHANGE = """
best_sizes
- counts = sorted(Counter(steps).items())
+ counts = sorted(Counter(steps).items())
+ if counts:
+     found = [rung for rung, _ in counts]
+     return sorted({found[-1 - i * len(found) // n] for i in range(min(n, len(found)))})
"""

exec(edited(__file__, CHANGE))
