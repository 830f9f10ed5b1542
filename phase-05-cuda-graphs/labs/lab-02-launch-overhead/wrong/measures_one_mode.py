"""It lets two graphs be measured in all.

Two of each mode: pieces and whole graphs take different memory.

Refused by `test_a_start_runs_the_model`.
"""

from course.learner.edited import edited

CHANGE = """
passes_before_serving
- return sum(2 * count + 2 * min(count, 2) for count in graphs.values())
+ return 2 * sum(graphs.values()) + 2 * min(sum(graphs.values()), 2)
"""

exec(edited(__file__, CHANGE))
