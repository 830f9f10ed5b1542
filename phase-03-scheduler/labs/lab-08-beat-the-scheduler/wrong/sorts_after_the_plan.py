"""It reorders when the step is planned.

The plan has been made from the order of the step before, and whoever came since stands at the tail.

Refused by `test_the_scheduler_follows_the_policy_it_was_given`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- reorder(self.waiting, policy, self.clock())
- return super().schedule(*args, **kwargs)
+ plan = super().schedule(*args, **kwargs)
+ reorder(self.waiting, policy, self.clock())
+ return plan
"""

exec(edited(__file__, CHANGE))
