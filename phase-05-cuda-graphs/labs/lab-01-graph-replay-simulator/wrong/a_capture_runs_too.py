"""A launch during a capture is written down and carried out.

A capture computes nothing. It is made with whatever lies in the buffers, and if it ran, it would write K
and V of nobody into the cache.

Refused by `test_a_capture_writes_down_and_does_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
LaunchCounter.launch
- self._graph.launches.append(launch)
- return
+ self._graph.launches.append(launch)
+ launch.run()
+ return
"""

exec(edited(__file__, CHANGE))
