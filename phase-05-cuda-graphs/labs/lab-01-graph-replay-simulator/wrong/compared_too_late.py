"""The addresses are compared when the replay has run.

It has written by then: into its outputs, and in an engine into the KV cache, with another step's numbers.

Refused by `test_an_input_that_moved_is_refused`.
"""

from course.learner.edited import edited

CHANGE = """
GraphRunner.__call__
- for name, there in entry.input_addresses.items():
-     if address(values[name]) != there:
-         raise RuntimeError(f"{name} has moved since {batch_descriptor} was captured")
- self.counter.replay(entry.graph)
+ self.counter.replay(entry.graph)
+ for name, there in entry.input_addresses.items():
+     if address(values[name]) != there:
+         raise RuntimeError(f"{name} has moved since {batch_descriptor} was captured")
"""

exec(edited(__file__, CHANGE))
