"""The user's list is sorted in place.

It is the caller's, who may print it afterwards, as vLLM's warning does.

Refused by `test_sizes_of_ones_own`.
"""

from course.learner.edited import edited

CHANGE = """
capture_sizes
  if cudagraph_capture_sizes is not None:
+     cudagraph_capture_sizes.sort()
"""

exec(edited(__file__, CHANGE))
