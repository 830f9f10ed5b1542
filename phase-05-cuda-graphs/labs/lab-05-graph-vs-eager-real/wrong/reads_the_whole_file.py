"""The whole file is searched, not the function `call`.

Below it Inductor writes a benchmark, which calls kernels, too. No step runs that.

Refused by `test_launches_are_calls`.
"""

from course.learner.edited import edited

CHANGE = """
count_launches
- names = [match[1] for line in _body(code) if (match := _CALL.match(line))]
+ names = [match[1] for line in code.splitlines() if (match := _CALL.match(line))]
"""

exec(edited(__file__, CHANGE))
