"""Numbers between two bounds, as digits: no exponent, no plus, no zero in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mini_vllm.structured_output.automata.syntax import (
    EMPTY,
    NOTHING,
    Characters,
    Either,
    Joined,
    Node,
    Repeated,
    literal,
    optional,
)

MOST_DIGITS = 40
"""Of a bound, before its point and behind it."""

_DIGIT = Characters(((0x30, 0x39),))
_DIGITS = Repeated(_DIGIT, 0, None)


def _digit(first: int, last: int) -> Node:
    return Characters(((0x30 + first, 0x30 + last),))


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`; None is no bound.

    Attributes:
        low_open, high_open: the bound itself is left out.
    """

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False

    def negated(self) -> Interval:
        """The interval of -x."""
        low = None if self.high is None else self.high.copy_negate()
        high = None if self.low is None else self.low.copy_negate()
        return Interval(low, high, self.high_open, self.low_open)

    def whole(self) -> tuple[int | None, int | None]:
        """The first and the last integer in it."""
        low, high = self.low, self.high
        first = last = None
        if low is not None:
            first = int(low.to_integral_value(rounding="ROUND_CEILING"))
            first += self.low_open and first == low
        if high is not None:
            last = int(high.to_integral_value(rounding="ROUND_FLOOR"))
            last -= self.high_open and last == high
        return first, last


def interval_of(schema: Mapping[str, Any]) -> Interval:
    """What the bounds of a schema leave."""
    low, low_open = _stricter(max, schema.get("minimum"), schema.get("exclusiveMinimum"))
    high, high_open = _stricter(min, schema.get("maximum"), schema.get("exclusiveMaximum"))
    return Interval(low, high, low_open, high_open)


def _stricter(
    choose: Callable[..., Decimal], closed: Decimal | None, opened: Decimal | None
) -> tuple[Decimal | None, bool]:
    if closed is None or opened is None:
        return (closed, False) if opened is None else (opened, True)
    return choose(closed, opened), choose(closed, opened) == opened


def integers(interval: Interval) -> Node:
    """The integers of an interval. There is no -0."""
    first, last = interval.whole()
    negative = _naturals(1 if last is None else max(1, -last), None if first is None else -first)
    return Either((_naturals(max(0, first or 0), last), Joined((literal("-"), negative))))


def _naturals(first: int, last: int | None) -> Node:
    """The integers from `first`, which is not negative, to `last`."""
    if last is not None and last < first:
        return NOTHING
    options: list[Node] = []
    if last is None:
        length = len(str(first))
        options.append(
            Joined((_digit(1, 9), Repeated(_DIGIT, length, None)))
        )  # all that are longer
        last = 10**length - 1
    for length in range(len(str(first)), len(str(last)) + 1):
        least = max(first, 10 ** (length - 1) if length > 1 else 0)
        options.append(_same_length(str(least), str(min(last, 10**length - 1))))
    return Either(tuple(options))


def _same_length(low: str, high: str) -> Node:
    """The strings of digits from `low` to `high`, which are as long."""
    same = 0
    while same < len(low) and low[same] == high[same]:
        same += 1
    head, low, high = literal(low[:same]), low[same:], high[same:]
    if not low:
        return head
    rest = len(low) - 1
    # Below `low`'s first digit and above `high`'s nothing fits, between them everything does.
    options = [
        Joined((literal(low[0]), _beyond(low[1:], up=True))),
        Joined((literal(high[0]), _beyond(high[1:], up=False))),
    ]
    if int(high[0]) - int(low[0]) > 1:
        between = _digit(int(low[0]) + 1, int(high[0]) - 1)
        options.append(Joined((between, Repeated(_DIGIT, rest, rest))))
    return Joined((head, Either(tuple(options))))


def _beyond(bound: str, up: bool) -> Node:
    """As many digits as the bound has, that are no less than it, or no more."""
    if bound == ("0" if up else "9") * len(bound):
        return Repeated(_DIGIT, len(bound), len(bound))
    options: list[Node] = [literal(bound)]
    for at, char in enumerate(bound):
        rest = len(bound) - at - 1
        first, last = (int(char) + 1, 9) if up else (0, int(char) - 1)
        if first <= last:
            head = Joined((literal(bound[:at]), _digit(first, last)))
            options.append(Joined((head, Repeated(_DIGIT, rest, rest))))
    return Either(tuple(options))


def decimals(interval: Interval) -> Node:
    """The numbers of an interval."""
    minus = Joined((literal("-"), _positive(interval.negated())))
    return Either((_positive(interval), minus))


def _positive(interval: Interval) -> Node:
    """The numbers of an interval that have no minus, 0 among them."""
    low, low_open = interval.low, interval.low_open
    if low is None or low < 0:
        low, low_open = Decimal(0), False
    low_whole, low_rest = _split(low)
    if interval.high is None:
        high_whole, options = None, list[Node]()
    elif interval.high < 0:
        return NOTHING
    else:
        high_whole, high_rest = _split(interval.high)
        below = _Rest(None, high_rest, False, interval.high_open)
        if high_whole <= low_whole:
            if high_whole < low_whole:
                return NOTHING
            both = _Rest(low_rest, high_rest, low_open, interval.high_open)
            return Joined((literal(str(low_whole)), both.fraction()))
        options = [Joined((literal(str(high_whole)), below.fraction()))]
    above = _Rest(low_rest, None, low_open, False)
    options.append(Joined((literal(str(low_whole)), above.fraction())))
    between = _naturals(low_whole + 1, None if high_whole is None else high_whole - 1)
    options.append(Joined((between, _Rest(None, None, False, False).fraction())))
    return Either(tuple(options))


def _split(number: Decimal) -> tuple[int, str]:
    """The whole part, and the digits behind the point without zeros at the end."""
    whole, _, rest = f"{number:f}".partition(".")
    return int(whole), rest.rstrip("0")


@dataclass(frozen=True)
class _Rest:
    """Digits behind the point that are between two others. None: whatever comes is past that bound."""

    low: str | None
    high: str | None
    low_open: bool
    high_open: bool

    def fraction(self) -> Node:
        """The point and the digits. Without them the rest is 0."""
        dotted = Joined((literal("."), Either(tuple(self._onward()))))
        return optional(dotted) if self._may_end() else dotted

    def _may_end(self) -> bool:
        above = self.low is None or (self.low == "" and not self.low_open)
        below = self.high is None or self.high != "" or not self.high_open
        return above and below

    def _onward(self) -> Iterator[Node]:
        """One digit more, and what may follow it."""
        for digit in range(10):
            low, high = self.low, self.high
            if low is not None:
                order = digit - int(low[:1] or 0)
                if order < 0:
                    continue
                low = None if order > 0 else low[1:]
            if high is not None:
                order = int(high[:1] or 0) - digit
                if order < 0:
                    continue
                high = None if order > 0 else high[1:]
            after = _Rest(low, high, self.low_open, self.high_open)
            yield Joined((_digit(digit, digit), after._tail()))

    def _tail(self) -> Node:
        if self.low or self.high:
            options = Either(tuple(self._onward()))
            return Either((options, EMPTY)) if self._may_end() else options
        if self.low is None and self.high is None:
            return _DIGITS
        zeros = Repeated(_digit(0, 0), 0, None)
        if self.high == "":  # only zeros are no more than it
            return zeros if self._may_end() else NOTHING
        return Joined((zeros, _digit(1, 9), _DIGITS)) if self.low_open else _DIGITS
