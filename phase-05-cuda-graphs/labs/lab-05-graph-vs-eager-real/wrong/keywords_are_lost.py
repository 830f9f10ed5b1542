"""Keyword arguments are not handed on.

A sum that was asked for in float64 then comes back in float32.

Refused by `test_keywords_are_handed_on`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.Counter.__torch_dispatch__
- out = func(*args, **(kwargs or {}))
+ out = func(*args)
"""

exec(edited(__file__, CHANGE))
