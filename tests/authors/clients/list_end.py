"""A bias for the bracket that ends a list: with `required` the tiny model would call without end."""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen

_BODY = json.dumps({"prompt": "]", "add_special_tokens": False}).encode()
_REQUEST = Request(f"{sys.argv[1]}/tokenize", _BODY, {"Content-Type": "application/json"})
with urlopen(_REQUEST) as answer:
    LIST_END = {str(token): 100 for token in json.load(answer)["tokens"]}
