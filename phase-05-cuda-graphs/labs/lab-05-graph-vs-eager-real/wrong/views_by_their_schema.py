"""A view is what its schema says returns an alias.

`_unsafe_view` says it returns a new tensor, and returns the old memory. Look at the memory.

Refused by `test_views_start_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.Counter.__torch_dispatch__
- view = not func._schema.is_mutable and given.issuperset(storages(out))
+ view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
"""

exec(edited(__file__, CHANGE))
