"""It forgets the gate.

SwiGLU has three matrices: gate, up and down.

Refused by `test_the_linears_one_by_one`.
"""

from course.learner.edited import edited

CHANGE = """
linear_weights
- return model.layers * model.hidden * (2 * q + 2 * kv + 3 * model.mlp)
+ return model.layers * model.hidden * (2 * q + 2 * kv + 2 * model.mlp)
"""

exec(edited(__file__, CHANGE))
