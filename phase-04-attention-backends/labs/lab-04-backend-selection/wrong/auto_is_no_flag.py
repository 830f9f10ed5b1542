"""`--attention-backend auto` is as good as no flag.

In the config `auto` becomes None as it is read. The flag is read later: that it is there is enough.

Refused by `test_both_flags_are_one_too_many`.
"""

from course.learner.edited import edited

CHANGE = """
requested
- if attention_backend is None:
+ if _name(attention_backend) is None:
"""

exec(edited(__file__, CHANGE))
