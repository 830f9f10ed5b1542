"""A backend is left at the first thing that speaks against it.

vLLM asks on and collects. Otherwise somebody mends one reason, and is told the next.

Refused by `test_all_reasons_are_collected`.
"""

from course.learner.edited import edited

CHANGE = """
refusals
- return reasons if last is None else [*reasons, last]
+ return (reasons if last is None else [*reasons, last])[:1]
"""

exec(edited(__file__, CHANGE))
