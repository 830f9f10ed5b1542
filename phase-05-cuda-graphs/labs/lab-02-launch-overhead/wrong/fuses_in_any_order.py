"""It fuses a norm with the add behind it, too.

The sum is what the norm reads. In the other order neither needs the other.

Refused by `test_fusing`.
"""

from course.learner.edited import edited

CHANGE = """
fuse
- if name == second and fused and fused[-1] == first:
+ if fused and {name, fused[-1]} == {first, second}:
"""

exec(edited(__file__, CHANGE))
