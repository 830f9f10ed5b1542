"""Given: your functions beside vLLM's own and its xgrammar. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   1,000 fresh texts, and your tag in xgrammar
    python in_vllm.py --record               write recorded.json, which the tests read

The format is the one that vLLM calls hermes; Qwen's models write it, too.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_06_support")
START, LINE = support.START, support.LINE
PLACES = (
    "",
    "I <tool_call",
    "<tool_call>",
    '<tool_call>\n{"name": "',
    '<tool_call>\n{"name": "look_up", "arguments": {"part": "KX-11',
    LINE,
)
"""Texts after which the tokens allowed by the tag are counted."""


# ---- vLLM ----------------------------------------------------------------------------------------


class Tokenizer:
    """All that the parser asks of one."""

    def get_vocab(self) -> dict[str, int]:
        return {}


def _parser(tools: Any = None) -> Any:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    return Hermes2ProToolParser(Tokenizer(), tools)


def ask(tools: Any = None, tool_choice: Any = "auto", **fields: Any) -> Any:
    """A chat request, as the server reads one."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    tools = copy.deepcopy(tools or support.TOOLS)
    messages = [{"role": "user", "content": "My kettle is dead."}]
    return ChatCompletionRequest(
        model="m", messages=messages, tools=tools, tool_choice=tool_choice, **fields
    )


def vllm_rule(tools: Any, tool_choice: Any, **fields: Any) -> Any:
    """The rule with which a request reaches the engine, in the lab's form."""
    request = ask(tools, tool_choice, **fields)
    if tool_choice != "none":  # as in preprocess_chat, vllm/entrypoints/serve/render/serving.py
        request = _parser(request.tools).adjust_request(request)
    params = request.to_sampling_params(16, {}).structured_outputs
    if params is None:
        return None
    named = {"json": params.json, "structural_tag": params.structural_tag}
    return {name: value for name, value in named.items() if value is not None}


def vllm_whole(text: str, tool_choice: Any = "auto") -> list[Any]:
    """Content and calls of a finished text, as the server reads it."""
    from vllm.entrypoints.openai.engine.serving import OpenAIServing
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    _parser()
    calls, content = OpenAIServing._parse_tool_calls_from_content(
        ask(tool_choice=tool_choice), Tokenizer(), True, Hermes2ProToolParser, text
    )
    return [content, [[call.name, call.arguments] for call in calls or []]]


def vllm_stream(pieces: list[str]) -> list[Any]:
    """Content and calls as a client puts them together."""
    parser, request = _parser(), ask()
    text, content, calls = "", "", []
    for piece in pieces:
        before, text = text, text + piece
        message = parser.extract_tool_calls_streaming(before, text, piece, [], [], [], request)
        if message is None:
            continue
        content += message.content or ""
        for delta in message.tool_calls:
            if delta.function.name:
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return [content, calls]


def by_cut(text: str) -> list[Any]:
    """What the client gets when a text comes in two pieces: each outcome, and for how many cuts."""
    outcomes = Counter(
        json.dumps(vllm_stream([text[:at], text[at:]])) for at in range(1, len(text))
    )
    return [[count, json.loads(outcome)] for outcome, count in outcomes.most_common()]


# ---- xgrammar ------------------------------------------------------------------------------------


class Tagged:
    """A structural tag in the library, over 256 tokens of a byte each and an end token, 256."""

    def __init__(self, tag: str) -> None:
        import xgrammar

        self.library = xgrammar
        info = xgrammar.TokenizerInfo(
            [bytes([byte]) for byte in range(256)] + [b"</s>"], vocab_size=257, stop_token_ids=[256]
        )
        compiler, form = xgrammar.GrammarCompiler(info, max_threads=1), json.loads(tag)
        if "structures" in form:  # as in XgrammarBackend.compile_grammar
            items = [
                xgrammar.StructuralTagItem(
                    begin=one["begin"], schema=json.dumps(one["schema"]), end=one["end"]
                )
                for one in form["structures"]
            ]
            self.compiled = compiler.compile_structural_tag(items, form["triggers"])
        else:
            self.compiled = compiler.compile_structural_tag(tag)

    def allowed(self, text: str) -> list[int] | None:
        """The tokens allowed after a text, or None if the text itself is not."""
        matcher = self.library.GrammarMatcher(self.compiled)
        if not all(matcher.accept_token(byte) for byte in text.encode()):
            return None
        row = self.library.allocate_token_bitmask(1, 257)
        matcher.fill_next_token_bitmask(row)
        return [token for token in range(257) if int(row[0, token // 32]) >> token % 32 & 1]


# ---- both ----------------------------------------------------------------------------------------


def differing_rules(lab: Any) -> list[str]:
    """Sets of tools and choices for which the lab's rule is not vLLM's."""
    return [
        f"{name}, {choice}"
        for name, tools in support.SETS.items()
        for choice in support.choices(tools)
        if lab.tools_to_rule(copy.deepcopy(tools), choice) != vllm_rule(tools, choice)
    ]


def differing_texts(lab: Any, first: int, count: int) -> list[str]:
    """Those of so many texts that the lab reads otherwise than vLLM: finished, or streamed by characters. In
    a text with a call that cannot be read only the finished one is compared."""
    wrong = []
    for seed in range(first, first + count):
        good = support.draw_text(seed).text
        for text in (good, support.spoil(seed)):
            reply = lab.parse_calls(text)
            mine = [reply.content, [[call.name, call.arguments] for call in reply.calls]]
            if mine != vllm_whole(text):
                wrong.append(f"{text!r} finished")
        seen = support.stream(lab, good)
        if seen.wrong or [seen.content, seen.calls] != vllm_stream(list(good)):
            wrong.append(f"{good!r} streamed")
    return wrong


def refused_by_the_tag(lab: Any) -> list[str]:
    """Texts that the lab's tag should let through and does not, or the other way round."""
    tag = Tagged(lab.tools_to_rule(support.TOOLS, "auto", strict=True)["structural_tag"])
    call = LINE[LINE.index(START) :]
    right = ("", "Dear Cy, it is done.", LINE, call * 2, f"{LINE} Done.", "a < b", "</tool_call>")
    bad = (
        LINE.replace("}}", "}"),
        LINE.replace("kettle", "a very long kettle"),
        LINE.replace("book_repair", "fly"),
        LINE.replace("3", '"three"'),
        LINE.replace("days", "hours"),
        f"The tag {START} begins a call.",
    )
    ends = {text: 256 in (tag.allowed(text) or []) for text in (*right, *bad)}
    return [text for text, may_end in ends.items() if may_end != (text in right)]


def record() -> str:
    """What recorded.json holds.

    rules: tools by name, choice, and the rule that reaches the engine. whole: text, content, calls.
    streamed: text, content, calls, one character at a time; the calls of these texts can be read.
    cuts: `SHORT` in two pieces. cut off: a list of two calls that ends early, with `required`.
    allowed: after a text how many of 257 tokens the tag allows, and whether the end token is one.
    """
    solution = load_module(HERE / "solution.py", "lab_12_06_solution_record")
    tag = Tagged(solution.tools_to_rule(support.TOOLS, "auto", strict=True)["structural_tag"])
    good = [support.draw_text(seed).text for seed in range(40)]
    spoilt = [support.spoil(seed) for seed in range(40)]
    allowed = [(place, tag.allowed(place) or []) for place in PLACES]
    both = '[{"name": "look_up", "parameters": {"part": "KX-1190"}}, {"name": "hang_up", "par'
    parts: dict[str, list[Any]] = {
        "rules": [
            [name, choice, vllm_rule(tools, choice)]
            for name, tools in support.SETS.items()
            for choice in support.choices(tools)
        ],
        "whole": [[text, *vllm_whole(text)] for text in (*good, *spoilt, "", "No.", START)],
        "streamed": [[text, *vllm_stream(list(text))] for text in good],
        "cuts": by_cut(support.SHORT),
        "cut off": [both, *vllm_whole(both, "required")],
        "allowed": [[place, len(tokens), 256 in tokens] for place, tokens in allowed],
    }
    text = ",\n".join(
        f'"{name}":[\n' + ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n]"
        for name, lines in parts.items()
    )
    return f'{{"vllm":"0.22.1",\n{text}\n}}\n'


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        support.RECORDED.write_text(record(), "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_12_06_{which}")
    for what, wrong in (
        ("rules, beside vLLM's", differing_rules(lab)),
        ("1,000 texts, beside vLLM's parser", differing_texts(lab, 1000, 1000)),
        ("13 texts, your tag in xgrammar", refused_by_the_tag(lab)),
    ):
        told = f": {'; '.join(wrong[:2])}" if wrong else ""
        print(f"{what:35}{len(wrong)} differ{told}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
