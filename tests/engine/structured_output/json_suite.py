"""The official JSON Schema test suite through a backend, and the table of what came of it.

The suite (MIT licence, 80 files) is in the source distribution of the Python package `jsonschema`. The
environment variable `JSON_SCHEMA_SUITE` names it: the archive, or the folder `draft2020-12`. Without it the
archive is fetched. To write the table and the sample, where xgrammar and llguidance are installed:

    python -m tests.engine.structured_output.json_suite

A document is written without blanks, its properties in the schema's order and whole numbers without a point,
and fed to the grammar with the end token behind it.

The table's verdicts on a group, a schema with documents: `enforced`, all valid documents are taken and all
others barred; `refused`, the schema; `narrower`, valid documents are barred, those of these numbers;
`ignored`, invalid ones are taken; `misread`, both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import mini_vllm
from mini_vllm.structured_output.backend_native import NativeBackend
from mini_vllm.structured_output.backend_types import StructuredOutputBackend
from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Options
from mini_vllm.tokenizer.tokenizer import Tokenizer

TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
FOLDER = Path(__file__).parent / "data"
TABLE = FOLDER / "json_suite.tsv"
SAMPLE = FOLDER / "json_suite_sample.json"
VARIABLE = "JSON_SCHEMA_SUITE"
PACKAGE, VERSION = "jsonschema", "4.26.0"
_INSIDE = "/json/tests/draft2020-12/"


@dataclass(frozen=True)
class Group:
    """One schema with documents.

    Attributes:
        file: of the suite, without its ending.
        number: of the group in it.
        schema: the schema.
        tests: documents, each with whether it is valid.
    """

    file: str
    number: int
    schema: Any
    tests: tuple[tuple[Any, bool], ...]


def read_suite(place: Path) -> list[Group]:
    """All groups of the archive, or of the folder."""
    files: dict[str, Any] = {}
    if place.is_dir():
        for path in place.rglob("*.json"):
            files[str(path.relative_to(place).with_suffix(""))] = json.loads(path.read_bytes())
    else:
        with tarfile.open(place) as archive:
            for member in archive:
                _, found, name = member.name.partition(_INSIDE)
                data = archive.extractfile(member) if found else None
                if data is not None:
                    files[name.removesuffix(".json")] = json.loads(data.read())
    return [group for file in sorted(files) for group in read_groups(file, files[file])]


def read_groups(file: str, groups: list[Any]) -> Iterator[Group]:
    """The groups of one file."""
    for number, group in enumerate(groups):
        tests = tuple((test["data"], test["valid"]) for test in group["tests"])
        yield Group(file, number, group["schema"], tests)


def write_document(value: Any, schema: Any, root: Any) -> str:
    """A document with its properties in the schema's order and whole numbers without a point."""
    return json.dumps(_ordered(value, schema, root, 0), ensure_ascii=False, separators=(",", ":"))


def _ordered(value: Any, schema: Any, root: Any, depth: int) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    known = _properties(schema, root) if depth < 20 else {}
    if isinstance(value, dict):
        order = {name: place for place, name in enumerate(known)}
        names = sorted(value, key=lambda name: order.get(name, len(order)))
        return {n: _ordered(value[n], known.get(n, {}), root, depth + 1) for n in names}
    if isinstance(value, list):
        inside = schema.get("items", {}) if isinstance(schema, dict) else {}
        return [_ordered(entry, inside, root, depth + 1) for entry in value]
    return value


def _properties(schema: Any, root: Any, depth: int = 0) -> dict[str, Any]:
    """Of the schema, of what it refers to, and what is required beside them."""
    if not isinstance(schema, dict) or depth > 9:
        return {}
    found = dict(schema.get("properties", {}))
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = root
        for step in reference.split("/")[1:]:
            target = target.get(step, {}) if isinstance(target, dict) else {}
        found = {**found, **_properties(target, root, depth + 1)}
    for key in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(key, []):
            found = {**found, **_properties(part, root, depth + 1)}
    required = schema.get("required", [])
    return {**found, **{name: {} for name in required if name not in found}}


FORMATS_CHECKED = ("date", "ipv4", "uuid", "email")
"""Formats for which the validator needs no other packages."""


def is_valid(schema: Any, document: str, formats: tuple[str, ...] = ()) -> bool:
    """What the package `jsonschema` says."""
    import jsonschema

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    value = json.loads(document, parse_constant=refuse)
    checker = jsonschema.FormatChecker(formats)
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    return bool(validator.is_valid(value))


Obey = Callable[[Any, list[str]], list[bool]]
"""Whether the grammar of a schema takes each of these documents. Raises ValueError if it is refused."""


def obey_with(
    make: Callable[[Tokenizer, int], StructuredOutputBackend],
    check: Callable[[Options, str], None] = lambda kind, spec: None,
) -> Obey:
    """What a backend does, behind its front end's check."""
    tokenizer = Tokenizer.from_folder(TINY)
    backend = make(tokenizer, len(tokenizer))
    assert tokenizer.eos_token_id is not None
    end = tokenizer.eos_token_id

    def obey(schema: Any, documents: list[str]) -> list[bool]:
        text = json.dumps(schema, ensure_ascii=False)
        check(Options.JSON, text)
        verdicts = []
        for document in documents:
            grammar = backend.compile_grammar(Options.JSON, text)
            tokens = tokenizer.encode(document, add_special_tokens=False)
            verdicts.append(bool(grammar.accept_tokens("r", [*tokens, end])))
        return verdicts

    return obey


def obey_natively() -> Obey:
    """The native backend."""
    return obey_with(NativeBackend)


def _found(pattern: str) -> str:
    """For the whole text: a pattern somewhere in it."""
    return f"^.*({pattern.strip('^$')}).*$"


RELAXED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no other properties or items": lambda s: {
        **({"additionalProperties": True} if "properties" in s else {}),
        **({"items": True} if "prefixItems" in s else {}),
        **s,
    },
    "a pattern is for the whole string": lambda s: {
        **s,
        **({"pattern": _found(s["pattern"])} if "pattern" in s else {}),
        **(
            {"patternProperties": {_found(p): v for p, v in s["patternProperties"].items()}}
            if "patternProperties" in s
            else {}
        ),
    },
    "format is obeyed": lambda s: {k: v for k, v in s.items() if k != "format"},
    "one text for a value of enum or const": lambda s: {
        k: v for k, v in s.items() if k not in ("enum", "const")
    },
    "no escapes in such strings": lambda s: {
        k: v for k, v in s.items() if k not in ("minLength", "maxLength", "pattern")
    },
}
"""Restrictions of the native backend: with the schema changed so, the document would be matched."""


def relax(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A schema with every schema inside it changed."""
    if isinstance(schema, list):
        return [relax(entry, change) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {
        key: value if key in ("enum", "const") else relax(value, change)
        for key, value in schema.items()
    }
    return change(inside)


def judge(group: Group, obey: Obey) -> str:
    """`enforced`; `refused`; `narrower`, valid documents are barred; `ignored`, invalid ones are not;
    `misread`, both. With the numbers of the documents, and why they are barred if that is known."""
    documents = [write_document(data, group.schema, group.schema) for data, _ in group.tests]
    try:
        taken = obey(group.schema, documents)
    except ValueError:
        return "refused"
    wide = [i for i, (_, valid) in enumerate(group.tests) if taken[i] and not valid]
    narrow = [i for i, (_, valid) in enumerate(group.tests) if valid and not taken[i]]
    if wide and narrow:
        return f"misread {_numbers(wide + narrow)}"
    if wide:
        return f"ignored {_numbers(wide)}"
    return f"narrower {_numbers(narrow)}" if narrow else "enforced"


def _numbers(found: list[int]) -> str:
    return ",".join(map(str, sorted(found)))


def explain(group: Group, verdict: str, obey: Obey) -> str:
    """Which restriction bars the valid documents of a verdict."""
    word, _, numbers = verdict.partition(" ")
    if word != "narrower":
        return ""
    documents = [
        write_document(group.tests[int(n)][0], group.schema, group.schema)
        for n in numbers.split(",")
    ]
    reasons = []
    for document in documents:
        for reason, change in RELAXED.items():
            if _takes(obey, relax(group.schema, change), document):
                reasons.append(reason)
                break
        else:
            reasons.append("?")
    return "; ".join(dict.fromkeys(reasons))


def _takes(obey: Obey, schema: Any, document: str) -> bool:
    try:
        return obey(schema, [document]) == [True]
    except ValueError:
        return False


def suite_place() -> Path | None:
    """What the environment variable names."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def fetch_suite(to: Path) -> Path:
    """Fetch the archive with pip. Raises OSError if that fails."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(to)]
    done = subprocess.run(
        [*command, "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = to / f"{PACKAGE}-{VERSION}.tar.gz"
    if done.returncode or not found.exists():
        raise OSError(f"the test suite could not be fetched: {done.stderr[-300:]}")
    return found


def read_table() -> dict[tuple[str, int], dict[str, str]]:
    """The committed verdicts, by file and group."""
    header, *lines = TABLE.read_text().splitlines()
    rows = (dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines)
    return {(row["file"], int(row["group"])): row for row in rows}


def read_sample() -> list[Group]:
    """The committed part of the suite."""
    files = json.loads(SAMPLE.read_text())["files"]
    return [
        Group(file, group["number"], group["schema"], tuple(map(tuple, group["tests"])))
        for file, groups in files.items()
        for group in groups
    ]


def _write_sample(groups: list[Group], license_text: str) -> None:
    """The first two groups of each file that are small."""
    files: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        if group.number > 1 or "/" in group.file or len(group.tests) > 10:
            continue
        entry = {"number": group.number, "schema": group.schema, "tests": group.tests}
        if len(json.dumps(entry)) < 900:
            files.setdefault(group.file, []).append(entry)
    SAMPLE.write_text(json.dumps({"license": license_text, "files": files}, indent=None) + "\n")


def _read_license(place: Path) -> str:
    with tarfile.open(place) as archive:
        for member in archive:
            if member.name.endswith("/json/LICENSE") and (data := archive.extractfile(member)):
                return data.read().decode()
    raise OSError(f"{place} holds no licence of the suite")


def obey_libraries() -> dict[str, Obey]:
    """xgrammar and llguidance, with the checks that stand before them."""
    from mini_vllm.structured_output.backend_guidance import (
        GuidanceBackend,
        validate_guidance_grammar,
    )
    from mini_vllm.structured_output.backend_xgrammar import (
        XgrammarBackend,
        validate_xgrammar_grammar,
    )

    return {
        "xgrammar": obey_with(XgrammarBackend, validate_xgrammar_grammar),
        "guidance": obey_with(GuidanceBackend, validate_guidance_grammar),
    }


def judge_all(groups: list[Group]) -> str:
    """The table."""
    native, libraries = obey_natively(), obey_libraries()
    lines = ["file\tgroup\tnative\txgrammar\tguidance\twhy narrower"]
    for group in groups:
        verdict = judge(group, native)
        others = [judge(group, libraries[name]) for name in ("xgrammar", "guidance")]
        why = explain(group, verdict, native)
        lines.append("\t".join([group.file, str(group.number), verdict, *others, why]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table and the sample."""
    with tempfile.TemporaryDirectory() as folder:
        place = suite_place() or fetch_suite(Path(folder))
        groups = read_suite(place)
        FOLDER.mkdir(exist_ok=True)
        TABLE.write_text(judge_all(groups))
        _write_sample(groups, _read_license(place))


if __name__ == "__main__":
    main()
