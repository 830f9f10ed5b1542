"""It takes a policy, and follows the one of its own file.

A parameter that is not used: whoever compares policies compares one with itself.

Refused by `test_the_scheduler_follows_the_policy_it_was_given`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- reorder(self.waiting, policy, self.clock())
+ reorder(self.waiting, globals()["policy"], self.clock())
"""

exec(edited(__file__, CHANGE))
