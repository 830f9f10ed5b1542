"""The input buffer is made inside of the capture.

Then it is the graph's memory, and filling it with zeros is the graph's first kernel: each replay wipes out
what was copied there. Whoever fills it from outside makes it outside.

Refused by `test_a_function_is_replayed_on_new_numbers`.
"""

from course.learner.edited import edited

CHANGE = """
Captured.capture
- with self.graphs.graph(graph, pool=self.pool):
-     output = self.function(*args)
+ with self.graphs.graph(graph, pool=self.pool):
+     args = tuple(torch.zeros_like(x) if isinstance(x, Tensor) else x for x in args)
+     output = self.function(*args)
"""

exec(edited(__file__, CHANGE))
