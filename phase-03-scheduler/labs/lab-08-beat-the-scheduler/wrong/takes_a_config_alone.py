"""Its `__init__` takes a config, as that of `mini_vllm` does.

vLLM's takes eight arguments, by keyword. Hand on whatever comes: `*args, **kwargs`.

Refused by `test_what_the_base_takes_goes_through`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- def __init__(self, *args: Any, **kwargs: Any) -> None:
-     super().__init__(*args, **kwargs)
+ def __init__(self, config: Any) -> None:
+     super().__init__(config)
"""

exec(edited(__file__, CHANGE))
