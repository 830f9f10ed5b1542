"""What the user asks for is taken, whatever its limits.

The override goes through the same validation as any candidate, and where it fails vLLM does not start.

Refused by `test_an_override_is_validated`.
"""

from course.learner.edited import edited

CHANGE = """
select
- if reasons:
+ if not reasons and override not in facts.BACKENDS:
"""

exec(edited(__file__, CHANGE))
