"""On a CPU, MLA is refused only where nobody has asked for a backend.

The CPU's function logs that it cannot use another one, and then refuses MLA all the same.

Refused by `test_a_cpu_has_one`.
"""

from course.learner.edited import edited

CHANGE = """
select
- if config.use_mla:
+ if config.use_mla and override is None:
"""

exec(edited(__file__, CHANGE))
