"""Whoever gets nothing is in the plan, with 0 tokens.

The plan is for those who compute something; a worker would prepare a row without tokens.

Refused by `test_the_budget_ends_in_the_middle`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
+ for request in self.running:
+     step.num_scheduled_tokens[request.request_id] = 0
  for request in self.running:
"""

exec(edited(__file__, CHANGE))
