"""FULL on a backend that allows nothing is lowered to pieces.

Whoever names FULL and can have nothing of it is told, with an error. The pair of modes is lowered.

Refused by `test_nothing_in_a_graph`.
"""

from course.learner.edited import edited

CHANGE = """
resolve_cudagraph_mode
- raise ValueError(f"{mode.name} needs attention in a graph, and support is NEVER")
+ return PIECEWISE
"""

exec(edited(__file__, CHANGE))
