"""Our backends on xgrammar and llguidance beside vLLM's, on the same rules: along random walks the same rows,
the same answers of `accept_tokens`, `validate_tokens` and `is_terminated`, and equal rows after rollbacks."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mini_vllm.structured_output.backend_types import BackendConfig
from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Options
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.request import StructuredOutputRequest, get_structured_output_key
from mini_vllm.tokenizer.tokenizer import Tokenizer
from mini_vllm.utils.structured_params import StructuredOutputsParams

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[3]
TINY = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
DRAFTS = 8

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "bé", '"']}, "maxItems": 3},
    },
    "required": ["name", "age"],
}
TAG = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"enum": ["x", None]}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
NODE = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
RULES: list[dict[str, Any]] = [
    {"regex": "[0-9]{2}"},
    {"regex": ""},
    {"regex": "(the|a) [a-z]+( cache| block)?s?"},
    {"regex": "é+|[^a-z]{1,3}"},
    {"regex": "\\d+\\.\\d{2}"},
    {"choice": ["yes", "no", "yesterday"]},
    {"choice": ["", "a"]},
    {"choice": ['a"b', "a\\b", "é", "c"]},
    {"json": PERSON},
    {"json": json.dumps(PERSON | {"additionalProperties": False})},
    {"json": {}},
    {"json": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]}},
    {"json": {"$defs": {"n": NODE}, "$ref": "#/$defs/n"}},
    {"json_object": True},
    {"structural_tag": json.dumps(TAG)},
]  # fmt: skip
EBNF = [
    {"grammar": 'root ::= "a" root "b" | ""'},
    {"grammar": 'root ::= num (op num)*\nop ::= [-+*/]\nnum ::= [0-9]+ | "(" root ")"'},
    {"grammar": "?start: pair | 'none'  # comment\npair: word \"=\" word\nword: \"k\" | 'v'\n"},
    {"choice": ["line\nbreak", "tab\t", "\0", "\u2028", "\U0001f600"]},
]
LARK = [
    {"grammar": 'start: "yes" | "no" " " "way"'},
    {"grammar": 'start: "n=" j\nj: %json {"type": "integer"}'},
    {"regex": "\\p{L}+"},
    {"json": {"type": "array", "items": {"type": "integer", "multipleOf": 7}, "maxItems": 2}},
]
CASES = [("xgrammar", rule) for rule in RULES + EBNF] + [
    ("guidance", rule) for rule in RULES + EBNF[3:] + LARK
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, int]]:
    """The tiny checkpoint's 264 tokens, and 900 longer ones in a model padded to 1,000."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    specials = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    made = [json.dumps({"name": "é", "age": i, "tags": ["a"]}) for i in range(200)]
    library.train_from_iterator([text, *made], trainer)
    folder = tmp_path_factory.mktemp("trained")
    library.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return [(TINY, 264), (folder, 1000)]


class Pair:
    """One backend, ours and vLLM's, on one tokenizer."""

    def __init__(self, name: str, folder: Path, vocab_size: int, compact: bool = False) -> None:
        from transformers import AutoTokenizer
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend
        from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

        closed = compact and name == "guidance"
        settings = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(
                disable_any_whitespace=compact, disable_additional_properties=closed
            ),
            speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS),
        )
        kind = XgrammarBackend if name == "xgrammar" else GuidanceBackend
        self.name = name
        self.theirs = kind(settings, AutoTokenizer.from_pretrained(folder), vocab_size)
        self.tokenizer = Tokenizer.from_folder(folder)
        config = BackendConfig(compact, closed, DRAFTS)
        self.manager = StructuredOutputManager(self.tokenizer, vocab_size, 4, config)
        self.ours = self.manager.backend(name)

    def compile(self, rule: dict[str, Any]) -> tuple[Any, Any]:
        from vllm.v1.structured_output.backend_types import StructuredOutputOptions
        from vllm.v1.structured_output.utils import (
            convert_lark_to_ebnf,
            grammar_is_likely_lark,
        )

        kind, spec = get_structured_output_key(StructuredOutputsParams(**rule))
        ours = self.ours.compile_grammar(kind, spec)
        if self.name == "xgrammar" and kind is Options.CHOICE:
            kind, spec = Options.GRAMMAR, _escaped(rule["choice"])
        if self.name == "xgrammar" and kind is Options.GRAMMAR and grammar_is_likely_lark(spec):
            spec = convert_lark_to_ebnf(spec)
        return ours, self.theirs.compile_grammar(StructuredOutputOptions[kind.name], spec)


def _escaped(choice: list[str]) -> str:
    """The EBNF that vLLM would make, were its escapes complete."""
    texts = [json.dumps(text, ensure_ascii=False) for text in choice]
    return "root ::= " + " | ".join(text.replace("\\u0000", "\\0") for text in texts)


def walk(pair: Pair, rule: dict[str, Any], seed: int) -> int:
    """A random walk. Returns how many rows were compared."""
    rng = random.Random(seed)
    ours, theirs = pair.compile(rule)
    our_rows = pair.ours.allocate_token_bitmask(1)
    their_rows = pair.theirs.allocate_token_bitmask(1)
    assert our_rows.shape == tuple(their_rows.shape)
    taken, compared = 0, 0
    for _ in range(40):
        assert ours.is_terminated() == theirs.is_terminated()
        if not ours.is_terminated():
            ours.fill_bitmask(our_rows, 0)
            theirs.fill_bitmask(their_rows, 0)
            assert np.array_equal(our_rows, their_rows.numpy()), taken
            compared += 1
        bits = np.unpackbits(our_rows.view(np.uint8)[0], bitorder="little")
        allowed = np.nonzero(bits)[0].tolist()
        some = [rng.choice(allowed), rng.randrange(len(pair.tokenizer)), rng.choice(allowed)]
        assert ours.validate_tokens(some) == theirs.validate_tokens(some)
        back = rng.randrange(min(taken, DRAFTS) + 1) if rng.random() < 0.3 else 0
        if back:
            ours.rollback(back)
            theirs.rollback(back)
            taken -= back
            continue
        # Now and then a token that may be barred. After a refusal xgrammar is where it was; guidance stays in
        # error, which is vLLM's rule as well: no further steps then.
        token = some[1] if rng.random() < 0.1 else some[0]
        answer = ours.accept_tokens("r", [token])
        assert answer == theirs.accept_tokens("r", [token])
        if not answer and (ours.is_terminated() or pair.name == "guidance"):
            break
        taken += answer
    return compared


@pytest.fixture(scope="module")
def pairs(folders: list[tuple[Path, int]]) -> dict[tuple[str, int], Pair]:
    return {
        (name, number): Pair(name, *folders[number])
        for name in ("xgrammar", "guidance")
        for number in (0, 1)
    }


@pytest.mark.parametrize("number", [0, 1], ids=["tiny", "padded"])
@pytest.mark.parametrize(("name", "rule"), CASES, ids=str)
def test_rows_and_answers_are_vllms(pairs, name: str, rule: dict[str, Any], number: int) -> None:
    assert sum(walk(pairs[name, number], rule, seed) for seed in range(8)) > 7


@pytest.mark.parametrize("name", ["xgrammar", "guidance"])
@pytest.mark.parametrize("rule", [{"json": PERSON}, {"json_object": True}, {"json": {}}], ids=str)
def test_without_blanks_too(folders, name: str, rule: dict[str, Any]) -> None:
    pair = Pair(name, *folders[0], compact=True)
    assert sum(walk(pair, rule, seed) for seed in range(8)) > 7


def compiled(
    manager: StructuredOutputManager, rules: list[dict[str, Any]]
) -> dict[str, StructuredOutputRequest]:
    requests = {}
    for number, rule in enumerate(rules):
        params = StructuredOutputsParams(**rule)
        params._backend = ("xgrammar", "guidance")[number % 2]
        requests[str(number)] = request = StructuredOutputRequest(params)
        manager.grammar_init(request)
    for request in requests.values():
        request._grammar.exception(timeout=60)  # type: ignore[union-attr]
    return requests


@pytest.mark.parametrize("vocab_size", [200, 264, 300], ids="model has {}".format)
def test_both_backends_in_one_step_by_threads_as_one_by_one(vocab_size: int) -> None:
    """150 requests, so that groups of 16 are filled by threads; each row as its grammar alone fills it. The
    model's vocabulary may be narrower or wider than the tokenizer's."""
    manager = StructuredOutputManager(Tokenizer.from_folder(TINY), vocab_size, 150)
    requests = compiled(manager, [RULES[number // 2 % len(RULES)] for number in range(150)])
    rng = random.Random(0)
    for _ in range(6):
        rows = manager.grammar_bitmask(requests, list(requests), {})
        assert rows is not None
        for number, request in enumerate(requests.values()):
            grammar = request.grammar
            assert grammar is not None, request.error
            alone = np.full((1, rows.shape[1]), -1, dtype=np.int32)
            if not grammar.is_terminated():
                grammar.fill_bitmask(alone, 0)
            assert np.array_equal(rows[number], alone[0])
            bits = np.unpackbits(alone.view(np.uint8)[0], bitorder="little")[:vocab_size]
            if not grammar.is_terminated():
                assert grammar.accept_tokens("r", [rng.choice(np.nonzero(bits)[0].tolist())])
    manager.shutdown()


def test_no_rule_that_fails_disturbs_another() -> None:
    """What real libraries refuse, or what makes their engine die at the pin, beside rules that are fine."""
    manager = StructuredOutputManager(Tokenizer.from_folder(TINY), 264, 8)
    bad = [
        {"regex": "\\p{L}"}, {"regex": "["}, {"regex": "a(?=b)"}, {"grammar": "root ::= x"},
        {"grammar": 'start: "a" j\nj: %json {"type": "integer"}'}, {"json": "false"},
        {"json": {"$ref": "#/nowhere"}}, {"json": {"type": "nonsense"}}, {"structural_tag": "{}"},
        {"structural_tag": '{"structures": [{}], "triggers": []}'},
    ]  # fmt: skip
    mixed = [rule for wrong in bad for rule in (wrong, wrong, {"regex": "a+"}, {"regex": "a+"})]
    for number, (rule, request) in enumerate(
        zip(mixed, compiled(manager, mixed).values(), strict=True)
    ):
        if number % 4 > 1:
            assert request.is_grammar_ready
            assert manager.grammar_bitmask({"r": request}, ["r"], {}) is not None
        elif number % 2 and ("%json" in str(rule) or "{L}" in str(rule)):
            assert request.is_grammar_ready, "guidance can do this"
        else:
            assert request.is_settled
            assert not request.is_grammar_ready
            library = ("xgrammar", "llguidance")[number % 2]
            message = str(request.error)
            assert message.startswith(f"structured_outputs.{next(iter(rule))} ")
            assert f": {library} refuses it: " in message
            assert ".cc:" not in message
    manager.shutdown()


@pytest.mark.parametrize("name", ["xgrammar", "guidance"])
def test_a_library_at_work_lets_other_threads_run(name: str) -> None:
    """It gives up the interpreter's lock, so that compiling, and the check before, stop no step."""
    many = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    key = get_structured_output_key(StructuredOutputsParams(json=many))
    backend = StructuredOutputManager(Tokenizer.from_folder(TINY), 264, 4).backend(name)
    turns, over = 0, threading.Event()

    def work() -> None:
        for _ in range(3):
            backend.compile_grammar(key[0], key[1] + " " * turns)  # the space: not from a cache
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not over.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    # With the lock kept there is a turn before each call and after it.
    assert turns > 100, turns
