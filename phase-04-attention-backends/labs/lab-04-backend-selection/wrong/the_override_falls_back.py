"""An override that will not do gives way to the automatic choice.

On CUDA there is no second choice behind an override: it raises, with the reasons. Somebody who asks for a
kernel wants to know that he does not get it.

Refused by `test_an_override_is_validated`.
"""

from course.learner.edited import edited

CHANGE = """
select
- raise facts.InvalidOverrideError(override, reasons)
+ return select(config, machine)
"""

exec(edited(__file__, CHANGE))
