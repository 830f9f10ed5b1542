"""The `mini-vllm` command: what it prints, what it refuses, how soon the first token comes."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.entrypoints.cli import build_parser, main
from mini_vllm.entrypoints.cli.flags import make_config
from mini_vllm.sampling_params import PARAMETERS
from tests.engine.helpers.engine.text_helpers import greedy, write_checkpoint
from tests.engine.helpers.patience import measure_slowness


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("cli")))


class Ran:
    """One call of the command in this process: its exit status and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        try:
            self.status = main(list(argv))
        except SystemExit as stop:  # argparse leaves this way
            self.status = int(stop.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def objects(self) -> list[dict[str, Any]]:
        # Only "\n" ends a line of JSON; str.splitlines knows more ends than that.
        return [json.loads(line) for line in self.out.split("\n") if line]


def expected_texts(model: str, prompts: list[Any], max_tokens: int) -> list[str]:
    llm = LLM(model)
    return [o.outputs[0].text for o in llm.generate(prompts, greedy(max_tokens), use_tqdm=False)]


# -- what it prints -------------------------------------------------------------------------------


def test_one_prompt_prints_its_completion(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "generate", "Hello", "--model", model, "--max-tokens", "30")
    (text,) = expected_texts(model, ["Hello"], 30)
    assert (ran.status, ran.out, ran.err) == (0, text + "\n", "")


def test_one_prompt_streams(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is written and flushed as it comes, not at the end."""

    flushed: list[str] = []

    class Out(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    out = Out()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["generate", "Hello", "--model", model, "--max-tokens", "30", "--ignore-eos"]) == 0
    seen = sorted({len(text) for text in flushed})
    assert len(seen) > 10, f"flushed at {seen} characters only"
    assert flushed[-1].rstrip("\n") == out.getvalue().rstrip("\n")


def test_several_prompts_are_printed_in_order(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [f"prompt {i}" for i in range(4)]
    ran = Ran(capsys, "generate", *prompts, "--model", model, "--max-tokens", "8")
    texts = expected_texts(model, prompts, 8)
    assert ran.out == "".join(f"--- {p}\n{t}\n" for p, t in zip(prompts, texts, strict=True))


def test_json_has_the_fields_of_request_output(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(
        capsys, "generate", "Hello", "You", "--json", "--model", model, "--max-tokens", "6",
        "--ignore-eos", "--logprobs", "2", "--prompt-logprobs", "1",
    )  # fmt: skip
    assert ran.status == 0
    assert [o["prompt"] for o in ran.objects] == ["Hello", "You"]
    for one in ran.objects:
        (completion,) = one["outputs"]
        assert len(completion["token_ids"]) == len(completion["logprobs"]) == 6
        assert completion["finish_reason"] == "length"
        assert len(one["prompt_logprobs"]) == len(one["prompt_token_ids"])
        assert one["finished"] is True
        assert one["num_cached_tokens"] == 0
    texts = [o["outputs"][0]["text"] for o in ran.objects]
    expected = LLM(model).generate(["Hello", "You"], greedy(6, ignore_eos=True), use_tqdm=False)
    assert texts == [o.outputs[0].text for o in expected]


def test_n_prints_every_completion(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--temperature", "1", "--seed", "3", "--max-tokens", "5", "--model", model)
    ran = Ran(capsys, "generate", "Hello", "--n", "3", "--json", *flags)
    assert [o["index"] for o in ran.objects[0]["outputs"]] == [0, 1, 2]
    plain = Ran(capsys, "generate", "Hello", "--n", "3", *flags)
    assert plain.out.count("--- Hello\n") == 3


def test_seed_makes_it_reproducible(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def say(seed: str) -> str:
        flags = ("--temperature", "1.2", "--seed", seed, "--ignore-eos", "--max-tokens", "30")
        return Ran(capsys, "generate", "Hello", "--model", model, *flags).out

    assert say("1") == say("1")
    assert say("1") != say("2")


def test_stop_flags(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = expected_texts(model, ["Hello"], 30)
    stop = text[8:10]
    ran = Ran(capsys, "generate", "Hello", "--model", model, "--stop", "zzz", "--stop", stop)
    assert ran.out == text[: text.index(stop)] + "\n"
    ids = LLM(model).generate("Hello", greedy(30), use_tqdm=False)[0].outputs[0].token_ids
    ran = Ran(
        capsys, "generate", "Hello", "--model", model, "--json", "--stop-token-id", str(ids[4])
    )
    one = ran.objects[0]["outputs"][0]
    assert one["token_ids"] == ids[: ids.index(ids[4]) + 1]
    assert one["stop_reason"] == ids[4]


def test_stats_go_to_standard_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--ignore-eos", "--max-tokens", "7", "--num-gpu-blocks", "33", "--block-size", "8")
    ran = Ran(capsys, "generate", "Hello", "--stats", "--model", model, *flags)
    assert re.search(r"^7 tokens in .* 7 steps, 0 preemptions, 33 KV blocks of 8 tokens$", ran.err)


def test_every_engine_flag_reaches_the_engine(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineConfig] = []
    monkeypatch.setattr(
        "mini_vllm.entrypoints.cli.flags.EngineConfig", lambda **kw: seen.append(EngineConfig(**kw))
    )
    wanted = {
        "block_size": 8, "num_gpu_blocks": 50, "kv_cache_memory_bytes": 12345, "max_model_len": 99,
        "max_num_seqs": 3, "max_num_batched_tokens": 128, "long_prefill_token_threshold": 17,
    }  # fmt: skip
    flags = [text for k, v in wanted.items() for text in ("--" + k.replace("_", "-"), str(v))]
    flags += ["--no-enable-prefix-caching", "--no-enable-chunked-prefill"]
    flags += ["--scheduling-policy", "priority", "--attention", "torch", "--model", model]
    Ran(capsys, "generate", "Hello", *flags)
    wanted |= {
        "enable_prefix_caching": False, "enable_chunked_prefill": False, "attention": "torch",
    }  # fmt: skip
    assert seen[0] == EngineConfig(**wanted, scheduling_policy="priority")  # type: ignore[arg-type]


# -- files of prompts -----------------------------------------------------------------------------


def test_a_file_of_prompts(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo and two\n  three\n", encoding="utf-8")
    flags = ("--prompts-file", str(file), "--model", model, "--max-tokens", "4", "--json")
    ran = Ran(capsys, "generate", "zero", *flags)
    assert ran.status == 0
    assert [o["prompt"] for o in ran.objects] == ["zero", "one", "two and two", "  three"]


def test_a_jsonl_file_of_prompts(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    prompts: list[Any] = [
        {"prompt": "one\nwith a line break"},
        {"prompt_token_ids": [1, 80, 81]},
        "a bare string",
        {"prompt": "salted", "cache_salt": "x"},
        {"prompt": "a line separator \u2028 is no end of a line of JSON"},
    ]
    lines = [json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts]
    file.write_text("".join(lines), encoding="utf-8")
    flags = ("--prompts-file", str(file), "--model", model, "--max-tokens", "4", "--json")
    ran = Ran(capsys, "generate", *flags)
    assert (ran.status, ran.err) == (0, "")
    texts = [p.get("prompt") if isinstance(p, dict) else p for p in prompts]
    assert [o["prompt"] for o in ran.objects] == texts
    assert ran.objects[1]["prompt_token_ids"] == [1, 80, 81]


def test_prompts_from_standard_input(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo"))
    ran = Ran(
        capsys, "generate", "--prompts-file", "-", "--model", model, "--max-tokens", "3", "--json"
    )
    assert [o["prompt"] for o in ran.objects] == ["one", "two"]


def test_a_bad_line_is_named_and_the_others_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    bad = [
        '{"prompt_token_ids": [1, 9999]}',
        '{"promt": "mistyped"}',
        '{"prompt": "' + "x" * 300 + '"}',
    ]
    lines = ['{"prompt": "one"}', *bad, '{"prompt": "two"}']
    file.write_text("\n".join(lines))
    flags = ("--prompts-file", str(file), "--model", model, "--max-tokens", "3", "--json")
    ran = Ran(capsys, "generate", *flags)
    assert ran.status == 1
    assert [o["prompt"] for o in ran.objects] == ["one", "two"]
    errors = ran.err.splitlines()
    assert len(errors) == 3
    for number, says in ((2, "9999"), (3, "promt"), (4, "301")):
        assert errors[number - 2].startswith(f"mini-vllm: {file}:{number}: ")
        assert says in errors[number - 2]


# -- traces ---------------------------------------------------------------------------------------


def test_traces(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", model, "--max-tokens", "5", "--ignore-eos", "--json")
    for name in ("steps.txt", "steps.json"):
        ran = Ran(capsys, "generate", "one", "two", "--trace", str(tmp_path / name), *flags)
        assert ran.status == 0
        assert len(ran.objects) == 2
    text = (tmp_path / "steps.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"^step \d+: ", text, re.M)) == 5
    trace = json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))
    tracks = [
        e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == "thread_name"
    ]
    assert sorted(tracks) == ["engine core", "request 0", "request 1"]


# -- bench ----------------------------------------------------------------------------------------


def test_bench(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--num-prompts", "5", "--input-len", "11", "--output-len", "7", "--model", model)
    ran = Ran(capsys, "bench", "--json", *sizes)
    (figures,) = ran.objects
    assert (figures["requests"], figures["input_tokens"], figures["output_tokens"]) == (5, 55, 35)
    assert figures["steps"] == 7
    assert 0 < figures["ttft_ms_median"] <= figures["ttft_ms_p99"] < 1e3 * figures["duration_s"]
    assert 0 < figures["itl_ms_median"] <= figures["itl_ms_p99"]
    per_second = figures["output_throughput_tokens_per_s"]
    assert per_second == pytest.approx(35 / figures["duration_s"])
    shown = Ran(capsys, "bench", *sizes)
    assert shown.status == 0
    assert re.search(r"^output tokens +35$", shown.out, re.M)


# -- help ----------------------------------------------------------------------------------------


def all_flags(command: str) -> Iterator[tuple[str, argparse.Action]]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a.choices, dict))
    for action in commands.choices[command]._actions:
        for option in action.option_strings:
            yield option, action


@pytest.mark.parametrize("command", ["generate", "bench", "trace"])
def test_help_names_and_explains_every_flag(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, command, "--help")
    assert ran.status == 0
    for option, action in all_flags(command):
        assert option in ran.out
        assert action.help, f"{option} has no help"
        assert len(action.help) > 8
    assert "fcfs" in ran.out or command == "trace"


def test_help_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "--help")
    assert ran.status == 0
    for word in ("generate", "trace", "serve", "bench", "examples:"):
        assert word in ran.out


def test_flags_carry_vllms_names() -> None:
    """A flag is a field of `SamplingParams` or `EngineConfig`, or one of the command's own, or short for
    keys of a field."""
    own = {
        "prompts_file", "json", "trace", "watch", "watch_delay", "stats", "stop_token_id", "model", "help",
        "mine", "enforce_eager", "num_prompts", "input_len", "output_len", "spec_method", "spec_model",
        "spec_tokens", "lora",
    }  # fmt: skip
    known = {*PARAMETERS, *(f.name for f in fields(EngineConfig))} | own
    for command in ("generate", "bench"):
        dests = {action.dest for _, action in all_flags(command)}
        assert dests <= known, f"{sorted(dests - known)} are no names of vLLM's"
    assert SamplingParams(stop_token_ids=[5]).stop_token_ids == [5]  # --stop-token-id, repeatable


# -- as a process ---------------------------------------------------------------------------------


def command(*argv: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mini_vllm.entrypoints.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **kwargs,
    )


def test_a_reader_who_has_seen_enough_is_no_error(model: str) -> None:
    process = command("generate", "a", "b", "--model", model, "--max-tokens", "9", "--ignore-eos")
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert b"Traceback" not in err
    assert b"BrokenPipeError" not in err


def test_a_prompt_that_is_no_utf8_is_refused_and_the_others_run(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `sys.argv` has it."""
    prompts = b"caf\xe9".decode("utf-8", "surrogateescape"), "A block"
    ran = Ran(capsys, "generate", *prompts, "--json", "--model", model, "--max-tokens", "9")
    assert ran.status == 1
    assert "prompt 1: prompt is not valid Unicode text" in ran.err
    assert [one["prompt"] for one in ran.objects] == ["A block"]


def test_first_token_within_a_second_of_process_start() -> None:
    """DESIGN.md's speed table, with the shipped model. Processor time, so that a busy machine does
    not count against it: waiting for nothing, the process takes no longer by the clock. A slow core, or one
    that other processes share, has as much more."""
    resource = pytest.importorskip("resource", reason="Windows has none")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = command("generate", "The scheduler", bufsize=0)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.kill()
    _, err = process.communicate()
    assert first, err.decode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    limit = 1.0 if spent < 1.0 else measure_slowness()
    assert spent < limit, f"the first token took {spent:.2f} s of processor time of {limit:.2f}"


def test_logits_processors_and_what_logprobs_are(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both flags reach the engine; what is no processor ends the command with one line."""
    args = build_parser().parse_args(
        [
            "generate",
            "Hello",
            "--logprobs-mode",
            "processed_logits",
            "--logits-processors",
            "a:B",
            "c:D",
        ]
    )
    config = make_config(args)
    assert config.logprobs_mode == "processed_logits"
    assert config.logits_processors == ["a:B", "c:D"]
    ran = Ran(capsys, "generate", "Hello", "--model", model, "--logits-processors", "no.such:Class")
    assert (ran.status, ran.out) == (2, "")
    assert "logits processor 'no.such:Class' cannot be loaded: No module" in ran.err
    assert len(ran.err.splitlines()) == 1, ran.err
