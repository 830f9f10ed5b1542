"""It forgets the graphs that are captured to measure memory, and thrown away.

They cost what any graph costs.

Refused by `test_a_start_runs_the_model`.
"""

from course.learner.edited import edited

CHANGE = """
passes_before_serving
- return sum(2 * count + 2 * min(count, 2) for count in graphs.values())
+ return sum(2 * count for count in graphs.values())
"""

exec(edited(__file__, CHANGE))
