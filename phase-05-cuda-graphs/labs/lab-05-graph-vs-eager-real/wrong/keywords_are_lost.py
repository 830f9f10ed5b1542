"""Keyword arguments are not handed on.

`torch.mul(x, 3, out=out)` then writes to new memory, and `out` stays as it was.

Refused by `test_writing_in_place_starts_one`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.Counter.__torch_dispatch__
- out = func(*args, **kwargs)
+ out = func(*args)
"""

exec(edited(__file__, CHANGE))
