"""The command `mini-vllm chat`: a talk in the terminal, with the engine in this process.

`vllm chat` is a client of a running server (`vllm/entrypoints/cli/openai.py:121 ChatCommand`); this one
needs none. The whole talk so far is each turn's prompt, as every chat server has it, so from the second turn
on most of it comes from the prefix cache, and the line below an answer says how much.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.entrypoints.cli.errors import print_error
from mini_vllm.entrypoints.cli.flags import add_engine_flags, add_flags, make_engine
from mini_vllm.entrypoints.cli.generate import SAMPLING_FLAGS
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.utils.extras import how_to_get

if TYPE_CHECKING:
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.tokenizer import Tokenizer
    from mini_vllm.trace import TraceRecorder

DEFAULT_CHAT_MODEL = "smollm2"
_HELP = """\
/trace [FILE]  write the talk's steps as a page and open it (a FILE is only written)
/clear         forget the talk
/help          this
/quit          end; so does Ctrl-D. Ctrl-C ends an answer"""
_SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_EXAMPLES = """\
examples:
  mini-vllm chat
  mini-vllm chat --system "Answer in one sentence." --temperature 0.7 --seed 1
  mini-vllm chat --model ./my-llama-instruct --max-model-len 2048
"""


def add_chat_parser(commands: Any) -> None:
    """Register `chat` with the subparsers of `mini-vllm`."""
    chat = commands.add_parser(
        "chat",
        help="talk with a model",
        description="Talk with a model. Each line is a turn; /help lists what else may be said.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chat.add_argument("--system", metavar="TEXT", help="the message in front of the talk")
    add_flags(chat, "sampling", {name: SAMPLING_FLAGS[name] for name in _SAMPLING})
    add_engine_flags(chat)
    chat.set_defaults(run=run_chat, model=DEFAULT_CHAT_MODEL, max_tokens=512)


class Talk:
    """The messages so far, and what becomes of the next.

    Args:
        engine: the model must have a tokenizer with a chat template.
        params: for every answer.
        system: the message in front; None for the template's own.

    Raises ValueError where jinja2 is missing, or the model has no chat template.
    """

    def __init__(self, engine: LLMEngine, params: SamplingParams, system: str | None) -> None:
        tokenizer = engine.tokenizer
        if importlib.util.find_spec("jinja2") is None:
            raise ValueError(
                f"a talk needs jinja2, of the extras 'smollm2' and 'gguf': {how_to_get('gguf')}"
            )
        if tokenizer is None or tokenizer.chat_template is None:
            raise ValueError(
                "the model has no chat template, so it cannot talk; 'mini-vllm generate' continues a text"
            )
        self.engine = engine
        self.tokenizer: Tokenizer = tokenizer
        self.params = params
        self.messages = [{"role": "system", "content": system}] if system is not None else []
        self._first = len(self.messages)
        self._turns = 0
        self.tokens = self.cached = self.prompt_tokens = self._first_tokens = 0
        self.first_s = self.rest_s = 0.0

    def clear(self) -> None:
        """Forget all but the message in front."""
        del self.messages[self._first :]

    def _prompt(self) -> list[int]:
        made = self.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
        ids: list[int] = made["input_ids"]
        return ids

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer to `text`, as much of it as each step completes; `summary` then tells what it took.

        Turns from the beginning are forgotten where the talk is longer than the model's context. If the
        iterator is closed early the request is aborted, and what was said stays in the talk.

        Raises ValueError where `text` alone is too long; the talk is then as it was.
        """
        config = self.engine.config
        self.messages.append({"role": "user", "content": text})
        prompt = self._prompt()
        while len(prompt) >= config.max_model_len and len(self.messages) > self._first + 2:
            del self.messages[self._first : self._first + 2]
            prompt = self._prompt()
        self._turns += 1
        request_id = f"turn-{self._turns}"
        try:
            self.engine.add_request(request_id, {"prompt_token_ids": prompt}, self.params)
        except ValueError:
            self.messages.pop()
            raise
        answer, self.tokens, self._first_tokens, self.prompt_tokens = "", 0, 0, len(prompt)
        start = time.perf_counter()
        self.first_s = self.rest_s = 0.0
        finished = False
        try:
            while not finished:
                piece = ""
                for output in self.engine.step():
                    finished, piece = output.finished, output.outputs[0].text
                    now = time.perf_counter() - start
                    self.tokens += len(output.outputs[0].token_ids)
                    self.cached = output.num_cached_tokens or 0
                    if not self.first_s:
                        self.first_s, self._first_tokens = now, self.tokens
                    self.rest_s = now - self.first_s
                answer += piece
                yield piece
        finally:
            if not finished:
                self.engine.abort_request(request_id)
            self.messages.append({"role": "assistant", "content": answer})

    @property
    def summary(self) -> str:
        """What the last answer took."""
        rest = self.tokens - self._first_tokens
        speed = f", {rest / self.rest_s:.1f} tokens/s after it" if rest and self.rest_s else ""
        return (
            f"{self.tokens} tokens; the first after {self.first_s:.2f} s{speed}; "
            f"{self.cached} of {self.prompt_tokens} prompt tokens from the cache"
        )


def run_chat(args: argparse.Namespace, out: TextIO) -> int:
    """The `chat` command, until the input ends or says so.

    Raises ValueError where model or flags are not usable.
    """
    from mini_vllm.model_loader import find_model, load_default_sampling_params
    from mini_vllm.trace import TraceRecorder

    given = {name: getattr(args, name) for name in _SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    args.model = find_model(args.model)
    defaults = {"temperature": 0.0} | load_default_sampling_params(args.model)
    params = SamplingParams(**(defaults | given), output_kind=RequestOutputKind.DELTA)
    engine = make_engine(args)
    talk = Talk(engine, params, args.system)
    recorder = TraceRecorder(engine)
    terminal = sys.stdin is not None and sys.stdin.isatty() and out.isatty()
    if terminal:
        import_readline()
        out.write("A line is a turn; /help lists what else may be said.\n")
    for line in _lines(terminal):
        text = line.strip()
        if text == "/quit":
            break
        if text.startswith("/"):
            _command(text, talk, recorder, out)
        elif text:
            _answer(talk, text, out)
    return 0


def import_readline() -> None:
    """Line editing and history at the prompt, where Python has them; Windows' own terminal has its own."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401


def _lines(terminal: bool) -> Iterator[str]:
    """What the user types, line by line."""
    if not terminal:
        yield from sys.stdin or ()
        return
    while True:
        try:
            yield input("\n> ")
        except EOFError:
            print()
            return


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C goes into the list while this is open. It must not end a step halfway, because an engine of
    which a step failed takes no other."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _answer(talk: Talk, text: str, out: TextIO) -> None:
    try:
        with _interrupts() as interrupts, contextlib.closing(talk.ask(text)) as pieces:
            for piece in pieces:
                out.write(piece)
                out.flush()
                if interrupts:
                    break
    except ValueError as error:
        print_error(str(error))
        return
    out.write("\n")
    out.flush()
    print(f"[{talk.summary}]", file=sys.stderr)


def _command(text: str, talk: Talk, recorder: TraceRecorder, out: TextIO) -> None:
    name, _, rest = text.partition(" ")
    if name == "/clear":
        talk.clear()
    elif name == "/help":
        out.write(_HELP + "\n")
    elif name == "/trace":
        _write_trace(rest.strip(), recorder, out)
    else:
        print_error(f"no command {name}; /help lists them")
    out.flush()


def _write_trace(name: str, recorder: TraceRecorder, out: TextIO) -> None:
    from mini_vllm.trace import check_trace_path, write_trace

    try:
        if name:
            path = Path(name)
        else:
            path = Path(tempfile.mkdtemp(prefix="mini-vllm-")) / "talk.html"
        check_trace_path(path)
        write_trace(recorder.trace, path)
    except (OSError, ValueError) as error:
        print_error(str(error))
        return
    out.write(f"{path}\n")
    if not name:
        webbrowser.open(path.resolve().as_uri())
