"""Errors as OpenAI's API shapes them, and JSON that can always be sent.

Mirrors `vllm/entrypoints/utils.py:347 create_error_response` and the exception handlers of
`vllm/entrypoints/openai/server_utils.py`: `{"error": {"message", "type", "param", "code"}}`, the
code being the HTTP status. What is wrong with a request is a 400, a schema violation included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Self

from pydantic import ValidationError
from starlette.responses import Response

from mini_vllm.engine.core import EngineDeadError
from mini_vllm.sampling_params import PARAMETERS
from mini_vllm.utils.untrusted import shorten_repr

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    414: "RequestURITooLongError",
    415: "UnsupportedMediaTypeError",
    431: "RequestHeaderFieldsTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_BLAMED = frozenset((*PARAMETERS, "beam_width", "length_penalty"))
_BIT = 8192  # entries of a list
_HALF_MESSAGE = 180  # characters: the engine's messages may repeat a list of any length


class ApiError(Exception):
    """An answer that is no success.

    Attributes:
        status: the HTTP status.
        message: for people: what was got, and the rule. Of a long one, beginning and end are kept.
        param: the request's field that is to blame; None where there is none.
        headers: further response headers.
        kind: the error's `type`; None: what the status says.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        kind: str | None = None,
    ) -> None:
        if len(message) > 2 * _HALF_MESSAGE:
            message = f"{message[:_HALF_MESSAGE]} … {message[-_HALF_MESSAGE:]}"
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = headers
        self.kind = kind

    def body(self) -> dict[str, Any]:
        kind = self.kind or _TYPES.get(self.status) or HTTPStatus(self.status).phrase
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.status,
            }
        }

    def response(self) -> Response:
        return JsonBytes(self.body(), self.status, self.headers)


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param)


def as_api_error(error: BaseException) -> ApiError:
    """The answer to an exception: 400 for what the request is to blame for, 500 for the rest.

    The engine raises TypeError and ValueError for nothing but bad requests, before it runs them.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return from_validation(error)
    if isinstance(error, ValueError | TypeError | OverflowError):
        # The engine's messages begin with the parameter's name, where one is to blame.
        name = re.match(r"[a-z_]*", str(error))
        return bad_request(str(error), name[0] if name and name[0] in _BLAMED else None)
    if isinstance(error, EngineDeadError):
        return ApiError(500, str(error))
    return ApiError(500, "internal server error")


def name_fields(error: BaseException, field_of: Callable[[str], str]) -> ApiError:
    """As `as_api_error`, but of a request whose fields have other names than the engine's parameters.

    Args:
        field_of: the field that has set a parameter.
    """
    answer = as_api_error(error)
    if answer.param is None:
        return answer
    if found := re.match(r"structured_outputs(\.\w+)?", answer.message):
        # What follows is the rule, in its own words.
        name, rest = field_of(found[0]), answer.message[found.end() :]
        return ApiError(answer.status, name + rest, name.partition(".")[0], answer.headers)
    names = {name: field_of(name) for name in (answer.param, "max_tokens")}
    pattern = rf"(?<![\w.'])({'|'.join(names)})(?![\w.'])"
    message = re.sub(pattern, lambda found: names[found[1]], answer.message)
    return ApiError(answer.status, message, names[answer.param], answer.headers)


def from_validation(error: ValidationError) -> ApiError:
    """The first field that is wrong, every rule it could have met, and what it got."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    location = [str(part) for part in first["loc"]]
    field = location[0] if location else None
    rules = [
        p["msg"].removeprefix("Value error, ") for p in problems if p["loc"][:1] == first["loc"][:1]
    ]
    rule = " or ".join(dict.fromkeys(rules[:4]))
    if first["type"] == "missing":
        return bad_request(f"{field}: this field is required", field)
    place = f"{field}: " if field is not None else ""
    return bad_request(f"{place}{rule}, got {shorten_repr(first['input'])}", field)


def to_json(value: Any) -> bytes:
    """Compact UTF-8. A lone surrogate, which UTF-8 cannot carry, comes out as JSON's own escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


class JsonBytes(Response):
    """A JSON response that no content can make fail."""

    media_type = "application/json"

    def __init__(
        self, content: Any, status_code: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        data = content if isinstance(content, bytes) else to_json(content)
        super().__init__(data, status_code, headers)

    @classmethod
    def of_lists(cls, content: dict[str, Any], lists: Mapping[str, Sequence[Any] | None]) -> Self:
        """An object that ends in lists of any length. They are encoded bit by bit, so that other threads
        have their turns."""
        pieces = [to_json(content)[:-1]]
        for name, values in lists.items():
            pieces.append(b"," + to_json(name) + b":")
            if values is None:
                pieces.append(b"null")
                continue
            bits = (to_json(values[i : i + _BIT])[1:-1] for i in range(0, len(values), _BIT))
            pieces += [b"[", b",".join(bits), b"]"]
        return cls(b"".join([*pieces, b"}"]))
