"""Each splitting kernel is a part of its own, with an empty piece between neighbours.

The write of K and V and attention follow each other in every layer. A graph between them would hold
nothing, and would still be a launch.

Refused by `test_pieces_are_what_lies_between`.
"""

from course.learner.edited import edited

CHANGE = """
PiecewiseGraphRunner.__init__
- part = list(group)
- self.parts.append(
-     part if splitting else GraphRunner(part, CUDAGraphMode.PIECEWISE, counter, pool)
- )
+ part = list(group)
+ if not splitting:
+     self.parts.append(GraphRunner(part, CUDAGraphMode.PIECEWISE, counter, pool))
+ for number, kernel in enumerate(part if splitting else []):
+     if number:
+         self.parts.append(GraphRunner([], CUDAGraphMode.PIECEWISE, counter, pool))
+     self.parts.append([kernel])
"""

exec(edited(__file__, CHANGE))
