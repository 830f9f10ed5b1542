"""act_order sorts the diagonal upwards.

The last columns have nobody left to make up for them. They had better be those that hardly count.

Refused by `test_loud_inputs_first`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- order = np.argsort(-np.diag(h), kind="stable")
+ order = np.argsort(np.diag(h), kind="stable")
"""

exec(edited(__file__, CHANGE))
