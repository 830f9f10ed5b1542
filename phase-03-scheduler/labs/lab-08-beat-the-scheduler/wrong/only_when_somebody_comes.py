"""It reorders when a request is added.

Keys change with the time, also while nobody comes. Reorder before each step.

Refused by `test_the_order_is_made_anew_in_each_step`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- def schedule(self, *args: Any, **kwargs: Any) -> Any:
+ def add_request(self, request: Any) -> None:
+     super().add_request(request)
      reorder(self.waiting, policy, self.clock())
-     return super().schedule(*args, **kwargs)
"""

exec(edited(__file__, CHANGE))
