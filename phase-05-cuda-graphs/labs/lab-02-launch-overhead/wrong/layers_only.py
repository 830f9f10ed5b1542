"""It forgets the ends of the model.

The embedding and the last norm are kernels, too.

Refused by `test_eager_starts_every_kernel`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = kernels.before + kernels.layers * kernels.layer + kernels.after
+ model = kernels.layers * kernels.layer
"""

exec(edited(__file__, CHANGE))
