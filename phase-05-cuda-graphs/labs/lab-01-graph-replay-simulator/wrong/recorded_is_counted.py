"""A launch counts when it is written down, too.

To record it costs the host something, at the start. But nothing is launched.

Refused by `test_a_capture_writes_down_and_does_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
LaunchCounter.launch
- self._graph.launches.append(launch)
- return
+ self._graph.launches.append(launch)
+ self._count(launch.kind)
+ return
"""

exec(edited(__file__, CHANGE))
