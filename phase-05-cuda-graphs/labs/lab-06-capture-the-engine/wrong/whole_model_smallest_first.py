"""The pieces go down the ladder, the graphs of the whole model go up.

They share the pool, and what a small one has freed is too small for the next. Go down for these as well.

Refused by `test_all_sizes_fit_into_the_memory_of_the_largest`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture
- for size in reversed(self.sizes):
-     if size <= self.max_num_seqs:
+ for size in self.sizes:
+     if size <= self.max_num_seqs:
"""

exec(edited(__file__, CHANGE))
