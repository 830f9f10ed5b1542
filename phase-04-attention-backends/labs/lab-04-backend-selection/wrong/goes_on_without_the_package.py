"""What cannot be imported is validated all the same.

The limits stand in the module that is not there, so ImportError is the only thing to be said.

Refused by `test_what_is_not_installed`.
"""

from course.learner.edited import edited

CHANGE = """
refusals
- if backend.needs_flashinfer and not machine.flashinfer:
-     return [facts.NOT_THERE]
"""

exec(edited(__file__, CHANGE))
