"""The log-sum-exp goes out in powers of two.

Inside, any base will do. Outside others merge with it, and they count in powers of e. Nothing crashes; the
parts are weighed wrongly.

Refused by `test_output_and_lse`.
"""

from course.learner.edited import edited

CHANGE = """
to_lse
- return finish(state), (state.m + log2_l) / LOG2_E
+ return finish(state), state.m + log2_l
"""

exec(edited(__file__, CHANGE))
