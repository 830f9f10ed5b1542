"""A kernel's name anywhere in a line counts.

Inductor's comments name the operators that a line came from, and an assertion has a name in a string.

Refused by `test_launches_are_calls`.
"""

from course.learner.edited import edited

CHANGE = """
count_launches
- names = [match[1] for line in _body(code) if (match := _CALL.match(line))]
+ names = [match[1] for line in _body(code) if (match := re.search(_CALL.pattern[3:], line))]
"""

exec(edited(__file__, CHANGE))
