"""The environment variable of old posts chooses the backend.

It was there once. At the pin nobody reads it, and vLLM starts with a warning of an unknown variable;
there are the two flags, and no third way.

Refused by `test_no_environment_variable`.
"""

from course.learner.edited import edited

CHANGE = """
requested
+ if attention_backend is None and config_backend is None:
+     config_backend = environ.get("VLLM_ATTENTION_" + "BACKEND")
  in_config = _name(config_backend)
"""

exec(edited(__file__, CHANGE))
