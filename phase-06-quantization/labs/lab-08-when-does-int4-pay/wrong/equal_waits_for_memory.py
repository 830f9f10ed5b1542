"""At the ridge itself it says memory.

There both take equally long, and nothing waits for memory any more.

Refused by `test_at_the_ridge_it_computes`.
"""

from course.learner.edited import edited

CHANGE = """
regime
- return longest, "memory" if compute < read else "compute"
+ return longest, "memory" if compute <= read else "compute"
"""

exec(edited(__file__, CHANGE))
