"""It gives the prompt the whole budget.

Those who decode are in the same step, so their tokens come off it.

Refused by `test_the_engine_shares_its_step_so`.
"""

from course.learner.edited import edited

CHANGE = """
mixed_step
- chunk = min(prompt, budget - len(decodes))
+ chunk = min(prompt, budget)
"""

exec(edited(__file__, CHANGE))
