"""Random JSON schemas of the set that the native backend supports."""

from __future__ import annotations

import random
from typing import Any

from mini_vllm.structured_output.automata.pushdown import Pushdown

NAMES = ["a", "ab", "b", 'k"', "é", "", "long name", "a\n", "😀", "x/y", "\\"]
TEXTS = ["", "a", "ab", 'q"', "é€", "x\ny", "\\", "tab\t", "😀", "\x01", "a/b"]
PATTERNS = [
    "[0-9]+",
    "^[A-Z]{2}-[0-9]{3,4}$",
    "(a|bé)*",
    "^x?y{1,3}$",
    "[^a-c]{2}",
    ".{0,3}",
    r"\w-?\d",
]


class RandomSchemas:
    """Draws schemas.

    Args:
        rng: the source.
        shared: only what xgrammar reads as the native backend does. Otherwise everything that is
            supported, and now and then what contradicts itself.
    """

    def __init__(self, rng: random.Random, shared: bool) -> None:
        self._rng = rng
        self._shared = shared
        self._refs: list[str] = []
        self._defining = False

    def draw(self) -> Any:
        """A schema, with definitions that may refer to each other."""
        rng = self._rng
        self._refs = [f"#/$defs/{name}" for name in "mn"[: rng.randint(0, 2)]]
        schema = self.part(rng.randint(1, 3))
        if self._refs and isinstance(schema, dict) and not self._is_bare(schema):
            schema["$defs"] = {ref[-1]: self._definition() for ref in self._refs}
        return schema

    def _definition(self) -> Any:
        self._defining = True
        while self._is_bare(schema := self.part(2)):
            pass
        self._defining = False
        return schema

    def _is_bare(self, schema: Any) -> bool:
        """A type alone. Beside `$defs` and behind `$ref` xgrammar takes it for the empty object or list."""
        return self._shared and isinstance(schema, dict) and schema.keys() == {"type"}

    def part(self, depth: int) -> Any:
        """A schema, nested at most so deep."""
        rng = self._rng
        leaves = [self._string, self._integer, self._plain, self._enum]
        if not self._shared:
            leaves += [self._number, self._anything]
        if depth == 0:
            return rng.choice(leaves)(0)
        nested = [self._object, self._object, self._array, self._any_of, self._reference]
        if not self._shared:
            nested += [self._all_of, self._mixed, self._one_of]
        return rng.choice([*nested, *leaves])(depth - 1)

    def _plain(self, depth: int) -> Any:
        kinds = ["string", "number", "integer", "boolean", "null", "array", "object"]
        kind = self._rng.choice(kinds)
        if self._rng.random() < 0.3:
            return {"type": sorted({kind, self._rng.choice(["null", "boolean"])})}
        return {"type": kind}

    def _anything(self, depth: int) -> Any:
        return self._rng.choice(
            [True, {}, False, {"minimum": 3}, {"maxLength": 2}, {"minItems": 1}]
        )

    def _string(self, depth: int) -> Any:
        rng, schema = self._rng, dict[str, Any](type="string")
        kind = rng.randrange(4)
        if kind == 0:
            schema["pattern"] = rng.choice(PATTERNS)
            if not self._shared and rng.random() < 0.3:  # xgrammar passes over the length
                schema.update(pattern="[a-c]{1,4}", maxLength=rng.randint(1, 5))
        elif kind == 1:
            formats = (
                ["uuid"] if self._shared else ["uuid", "date", "time", "date-time", "ipv4", "email"]
            )
            schema["format"] = rng.choice(formats)
        else:
            least = rng.randint(0, 3)
            if rng.random() < 0.6:
                schema["minLength"] = least
            if rng.random() < 0.6:
                schema["maxLength"] = least + rng.randint(0, 4)
        return schema

    def _bounds(self, draw: Any) -> dict[str, Any]:
        rng = self._rng
        low = draw()
        keys = (
            rng.choice(["minimum", "exclusiveMinimum"]),
            rng.choice(["maximum", "exclusiveMaximum"]),
        )
        bounds = {}
        if rng.random() < 0.7:
            bounds[keys[0]] = low
        if rng.random() < 0.7:
            bounds[keys[1]] = low + 2 + abs(draw())
        return bounds

    def _integer(self, depth: int) -> Any:
        rng = self._rng
        return {
            "type": "integer",
            **self._bounds(lambda: rng.randint(-(10 ** rng.randint(0, 4)), 1000)),
        }

    def _number(self, depth: int) -> Any:
        rng = self._rng
        bounds = self._bounds(lambda: round(rng.uniform(-20, 20), rng.randint(0, 3)))
        return {"type": rng.choice(["number", "integer"]), **bounds}

    def _enum(self, depth: int) -> Any:
        rng = self._rng
        values = [
            rng.choice([*TEXTS, 0, -7, 123, True, None, [1, "é"], {"k": []}]) for _ in range(3)
        ]
        return rng.choice([{"enum": values}, {"const": values[0]}])

    def _object(self, depth: int) -> Any:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(0, 4))
        properties = {name: self.part(depth) for name in names}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [name for name in names if rng.random() < 0.5]
        if not self._shared and rng.random() < 0.2:
            required.append("other")
        if required:
            rng.shuffle(required)
            schema["required"] = required
        free = rng.randrange(4)
        if free:
            schema["additionalProperties"] = [True, False, self.part(depth)][free - 1]
        if not names and rng.random() < 0.3:
            schema["additionalProperties"] = False
            schema["patternProperties"] = {rng.choice(PATTERNS): self.part(depth)}
        elif not names and rng.random() < 0.3:
            schema["additionalProperties"] = self.part(depth)
            schema["propertyNames"] = {"pattern": rng.choice(PATTERNS)}
        elif not names and schema.get("additionalProperties", False) is not False:
            if rng.random() < 0.5:
                schema["maxProperties"] = rng.randint(1, 3)
            if rng.random() < 0.3:
                schema["minProperties"] = 1
        return schema

    def _array(self, depth: int) -> Any:
        rng = self._rng
        first = [self.part(depth) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
        schema: dict[str, Any] = {"type": "array"}
        if first:
            schema["prefixItems"] = first
        if not first or rng.random() < 0.6:
            schema["items"] = rng.choice([self.part(depth), self.part(depth), False])
        least, closed = rng.randint(0, 3), schema.get("items", False) is False
        if closed:
            least = min(least, len(first))
        if rng.random() < 0.5:
            schema["minItems"] = least
        if rng.random() < 0.4:
            schema["maxItems"] = max(least, len(first)) + rng.randint(0, 2)
        return schema

    def _any_of(self, depth: int) -> Any:
        return {"anyOf": [self.part(depth) for _ in range(self._rng.randint(1, 3))]}

    def _one_of(self, depth: int) -> Any:
        options = []
        for number in range(self._rng.randint(1, 3)):
            option = self._object(depth)
            option["properties"] = {"kind": {"const": number}, **option["properties"]}
            option["required"] = ["kind", *option.get("required", [])]
            options.append(option)
        return {"oneOf": [*options, {"type": "string"}]}

    def _all_of(self, depth: int) -> Any:
        rng, base = self._rng, self.part(depth)
        if isinstance(base, bool) or rng.random() < 0.3:
            return {"allOf": [base, self.part(depth)]}
        # Otherwise hardly anything would fit both.
        looser = {key: value for key, value in base.items() if rng.random() < 0.6}
        more = [
            {"maxLength": 3},
            {"minimum": 2},
            {"maxItems": 2},
            {"required": ["a"]},
            {"type": "string"},
        ]
        return {"allOf": [base, looser, rng.choice(more)]}

    def _mixed(self, depth: int) -> Any:
        schema = self.part(depth)
        return {**self._object(depth), **(schema if isinstance(schema, dict) else {})}

    def _reference(self, depth: int) -> Any:
        if not self._refs:
            return self._object(depth)
        reference = {"$ref": self._rng.choice(self._refs)}
        if self._shared and self._defining:  # xgrammar does not see what can never be finished
            return {"anyOf": [reference, {"type": "null"}]}
        return reference


def write_randomly(rng: random.Random, automaton: Pushdown, most: int = 400) -> str | None:
    """A document of random bytes, ended now and then where it may end; None if it is longer.

    Raises AssertionError where no byte is allowed and the document is not at its end.
    """
    state, read = automaton.start, bytearray()
    while len(read) < most:
        if automaton.accepts(state) and rng.random() < 0.6:
            return read.decode(errors="surrogatepass")
        usual = rng.sample(_USUAL, len(_USUAL)) if rng.random() < 0.7 else []
        for byte in (*usual, *rng.sample(range(256), 256)):
            if after := automaton.advance(state, bytes([byte])):
                state = after
                read.append(byte)
                break
        else:
            assert automaton.accepts(state), bytes(read)
            return read.decode(errors="surrogatepass")
    return None


_USUAL = [*b'"}],:truefalsn0123456789 ']
