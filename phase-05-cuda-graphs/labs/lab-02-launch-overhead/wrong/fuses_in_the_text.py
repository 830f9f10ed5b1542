"""It fuses in the text that the names make together.

There an `add` is found in `q_add`, and a `norm` in `norm_k`. Whole names are to be compared.

Refused by `test_fusing`.
"""

from course.learner.edited import edited

CHANGE = """
fuse
- fused: list[str] = []
- for name in names:
-     if name == second and fused and fused[-1] == first:
-         fused[-1] = f"{first}+{second}"
-     else:
-         fused.append(name)
- return fused
+ return " ".join(names).replace(f"{first} {second}", f"{first}+{second}").split()
"""

exec(edited(__file__, CHANGE))
