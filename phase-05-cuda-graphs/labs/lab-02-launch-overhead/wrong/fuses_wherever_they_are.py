"""It fuses any two, neighbours or not.

What stands between two kernels runs between them.

Refused by `test_fusing`.
"""

from course.learner.edited import edited

CHANGE = """
fuse
- if name == second and fused and fused[-1] == first:
-     fused[-1] = f"{first}+{second}"
+ if name == second and first in fused:
+     fused[fused.index(first)] = f"{first}+{second}"
"""

exec(edited(__file__, CHANGE))
