"""FLASHINFER is first on 12.x, too.

The lists ask for the major number 10 and for nothing else.

Refused by `test_the_order`.
"""

from course.learner.edited import edited

CHANGE = """
candidates
- blackwell = machine.capability[0] == 10
+ blackwell = machine.capability[0] >= 10
"""

exec(edited(__file__, CHANGE))
