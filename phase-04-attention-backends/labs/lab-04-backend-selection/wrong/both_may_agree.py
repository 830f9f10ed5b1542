"""Two flags that say the same are one.

vLLM does not compare them. A backend in the config and a flag beside it are refused before anybody looks at
what they say.

Refused by `test_both_flags_are_one_too_many`.
"""

from course.learner.edited import edited

CHANGE = """
requested
- if in_config is not None:
+ if in_config is not None and in_config != _name(attention_backend):
"""

exec(edited(__file__, CHANGE))
