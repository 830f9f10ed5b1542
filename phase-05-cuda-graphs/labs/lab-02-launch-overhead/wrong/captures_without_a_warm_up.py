"""It counts one pass for each graph.

Before a capture comes a warm-up: what is set up on a first call, and what allocates, must have happened.

Refused by `test_a_start_runs_the_model`.
"""

from course.learner.edited import edited

CHANGE = """
passes_before_serving
- return sum(2 * count + 2 * min(count, 2) for count in graphs.values())
+ return sum(count + min(count, 2) for count in graphs.values())
"""

exec(edited(__file__, CHANGE))
