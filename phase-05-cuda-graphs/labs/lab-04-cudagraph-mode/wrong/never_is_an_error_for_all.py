"""Every FULL on a backend that allows nothing is an error.

The default mode is a pair with FULL in it. A server with such a backend still starts, in pieces.

Refused by `test_nothing_in_a_graph`.
"""

from course.learner.edited import edited

CHANGE = """
resolve_cudagraph_mode
  mode = cudagraph_mode
+ if mode.has_full_cudagraphs() and min_cg_support is AttentionCGSupport.NEVER:
+     raise ValueError(f"{mode.name} needs attention in a graph, and support is NEVER")
"""

exec(edited(__file__, CHANGE))
