"""Only tensors that are arguments themselves are looked at, not those in lists.

`cat` takes a list and `chunk` returns one. `tree_leaves` finds tensors at any depth.

Refused by `test_views_start_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.storages
- tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
+ leaves = values if isinstance(values, tuple) else (values,)
+ tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
"""

exec(edited(__file__, CHANGE))
