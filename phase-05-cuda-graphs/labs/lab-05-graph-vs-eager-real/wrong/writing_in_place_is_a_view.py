"""Whatever returns memory that came in is taken for a view.

`add_` returns its first argument, and has written to it. What tells the two apart is `is_mutable`.

Refused by `test_writing_in_place_starts_one`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.Counter.__torch_dispatch__
- view = not func._schema.is_mutable and given.issuperset(storages(out))
+ view = given.issuperset(storages(out))
"""

exec(edited(__file__, CHANGE))
