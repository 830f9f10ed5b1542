"""On a CPU an override is validated, too.

Each platform has a function of its own for the choice. That of the CPU logs that it cannot use the backend,
and goes on with the only one it has.

Refused by `test_a_cpu_has_one`.
"""

from course.learner.edited import edited

CHANGE = """
select
  if machine.capability is None:
+     if override is not None:
+         raise facts.InvalidOverrideError(override, [facts.CAPABILITY])
"""

exec(edited(__file__, CHANGE))
