"""Every graph is captured into a pool of its own.

Then none can use the memory of another, although no two of them ever run at the same time.

Refused by `test_all_sizes_fit_into_the_memory_of_the_largest`.
"""

from course.learner.edited import edited

CHANGE = """
Captured.capture
- with self.graphs.graph(graph, pool=self.pool):
+ with self.graphs.graph(graph):
"""

exec(edited(__file__, CHANGE))
