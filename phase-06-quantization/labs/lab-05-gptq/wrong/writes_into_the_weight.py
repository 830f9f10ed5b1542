"""The weight is changed in place.

`np.asarray` copies nothing that is an array of the right dtype already. The caller still wants to compare.

Refused by `test_nothing_is_written_over`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- rest = np.array(weight, np.float64)
+ rest = np.asarray(weight, np.float64)

gptq
- rest = rest[:, order]
+ rest = rest[:, order] if act_order else rest
"""

exec(edited(__file__, CHANGE))
