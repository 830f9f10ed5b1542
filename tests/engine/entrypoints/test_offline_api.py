"""What scripts written for vLLM call beside `generate`: chat, queues, metrics, arguments, the tokenizer."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    EngineConfig,
    LLMEngine,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.metrics.reader import Counter, Gauge, Histogram

FOUR = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ASK = [{"role": "user", "content": "What is a block?"}]
ASKED = "<bos><|user|>What is a block?<|assistant|>"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(disable_log_stats=False)


# -- arguments ------------------------------------------------------------------------------------


def test_engine_args_become_a_config() -> None:
    args = EngineArgs(num_gpu_blocks_override=40, max_num_seqs=3, dtype="auto", enforce_eager=True)
    assert args.create_engine_config() == EngineConfig(num_gpu_blocks=40, max_num_seqs=3)
    assert EngineArgs(num_gpu_blocks=40).num_gpu_blocks_override == 40
    again = EngineArgs(**dataclasses.asdict(args))
    assert again == args
    assert LLM(**vars(args)).llm_engine.config.num_gpu_blocks == 40
    assert LLM.from_engine_args(args).llm_engine.config.max_num_seqs == 3
    with pytest.raises(ValueError, match="max_num_seqs must be an integer of at least 1, got 0"):
        EngineArgs(max_num_seqs=0).create_engine_config()


def test_engine_args_from_a_command_line() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mine")
    assert EngineArgs.add_cli_args(parser) is parser
    flags = ["--max-num-seqs", "5", "--no-enable-prefix-caching", "--scheduling-policy", "priority"]
    args = AsyncEngineArgs.from_cli_args(parser.parse_args([*flags, "--mine", "x"]))
    config = args.create_engine_config()
    assert (config.max_num_seqs, config.enable_prefix_caching) == (5, False)
    assert config.scheduling_policy == "priority"
    assert args.model == DEFAULT_MODEL


def test_a_tokenizer_that_is_the_models_own_is_taken() -> None:
    assert EngineArgs(str(DEFAULT_MODEL), tokenizer=str(DEFAULT_MODEL)).model == str(DEFAULT_MODEL)


# -- prompts and queues ---------------------------------------------------------------------------


def test_prompts_with_a_name(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("A block")
    prompts: list[Any] = [
        TextPrompt(prompt="A block"),
        TokensPrompt(prompt_token_ids=ids),
        TokensPrompt(prompt_token_ids=ids, prompt="A block", cache_salt="s"),
        {"prompt": "A block", "multi_modal_data": None},
    ]
    outputs = llm.generate(prompts, FOUR, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["A block", None, "A block", "A block"]


def test_what_is_queued_runs_when_it_is_waited_for(llm: LLM) -> None:
    ids = llm.enqueue(["a", "b"], FOUR)
    assert llm.llm_engine.get_num_unfinished_requests() == 2
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids
    assert llm.wait_for_completion() == []
    with pytest.raises(ValueError, match="Token id 9999"):
        llm.enqueue([[1, 5], [9999]], FOUR)
    assert not llm.llm_engine.has_unfinished_requests()


def test_the_small_questions(llm: LLM) -> None:
    assert llm.get_world_size() == 1
    assert llm.reset_prefix_cache() is True
    assert llm.llm_engine.get_tokenizer() is llm.get_tokenizer()


# -- numbers --------------------------------------------------------------------------------------


def test_a_requests_own_numbers(llm: LLM) -> None:
    (output,) = llm.generate("The KV cache", FOUR, use_tqdm=False)
    stats = output.metrics
    assert stats is not None
    assert stats.num_generation_tokens == 4
    assert 0 < stats.queued_ts <= stats.scheduled_ts <= stats.first_token_ts < stats.last_token_ts
    assert stats.first_token_latency >= 0
    assert not stats.is_corrupted
    assert (output.lora_request, output.encoder_prompt, output.kv_transfer_params) == (None,) * 3
    assert output.outputs[0].lora_request is None


def test_an_engine_that_does_not_count_says_so() -> None:
    llm = LLM()
    assert llm.generate("a", FOUR, use_tqdm=False)[0].metrics is None
    with pytest.raises(ValueError, match="disable_log_stats=False"):
        llm.get_metrics()


def test_the_engines_numbers() -> None:
    engine = LLMEngine.from_engine_args(EngineArgs(max_num_seqs=2))
    for name, n in (("a", 1), ("b", 2)):
        params = SamplingParams(n=n, temperature=0.5, max_tokens=4, ignore_eos=True)
        engine.add_request(name, [1, 92, 112], params)
    engine.add_request("gone", [1], FOUR)
    engine.step()

    def read() -> dict[str, Any]:
        assert all(metric.labels["engine"] == "0" for metric in engine.get_metrics())
        names: dict[str, Any] = {}
        for metric in engine.get_metrics():
            key = metric.name.removeprefix("vllm:") + metric.labels.get("finished_reason", "")
            names[key] = metric.count if isinstance(metric, Histogram) else metric.value  # type: ignore[attr-defined]
        return names

    now = read()
    assert (now["num_requests_running"], now["num_requests_waiting"]) == (2, 2)
    assert 0 < now["kv_cache_usage_perc"] < 1
    engine.abort_request("gone")
    while engine.has_unfinished_requests():
        engine.step()
    now = read()
    assert (now["num_requests_running"], now["num_requests_waiting"]) == (0, 0)
    assert now["prompt_tokens"] == 9
    assert now["generation_tokens"] == 12
    assert (now["request_successlength"], now["request_successabort"]) == (3, 0)
    assert now["time_to_first_token_seconds"] == now["request_generation_tokens"] == 3
    assert now["e2e_request_latency_seconds"] == 3
    kinds = {type(metric) for metric in engine.get_metrics()}
    assert kinds == {Counter, Gauge, Histogram}


# -- chats ----------------------------------------------------------------------------------------


@pytest.fixture
def jinja2() -> None:
    pytest.importorskip("jinja2", reason="chat templates need jinja2, of the extra serve")


@pytest.mark.usefixtures("jinja2")
def test_a_chat_is_a_prompt_by_the_template(llm: LLM) -> None:
    (chat,) = llm.chat(ASK, FOUR, use_tqdm=False)
    assert chat.prompt == ASKED
    ids = llm.get_tokenizer().encode(ASKED, add_special_tokens=False)
    assert chat.prompt_token_ids == ids, "<bos> stands in the template: the tokenizer adds no other"
    (plain,) = llm.generate(TokensPrompt(prompt_token_ids=ids), FOUR, use_tqdm=False)
    assert chat.outputs[0].token_ids == plain.outputs[0].token_ids
    several = llm.chat([ASK, ASK], [FOUR, SamplingParams(max_tokens=1)], use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in several] == [4, 1]
    llm.enqueue_chat(ASK, FOUR, priority=[0])
    assert llm.wait_for_completion(use_tqdm=False)[0].prompt == ASKED
    assert llm.chat([], FOUR) == []


@pytest.mark.usefixtures("jinja2")
def test_templates_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ bos_token }}{{ messages[0].content }}{{ tone }}", encoding="utf-8")
    llm = LLM(chat_template=file)
    (output,) = llm.chat(
        ASK, FOUR, use_tqdm=False, chat_template_kwargs={"tone": "!", "messages": 1}
    )
    assert output.prompt == "<bos>What is a block?!"
    (output,) = llm.chat(ASK, FOUR, use_tqdm=False, chat_template="{{ messages | length }}")
    assert output.prompt == "1"


@pytest.mark.usefixtures("jinja2")
@pytest.mark.parametrize(
    ("messages", "more", "error", "says"),
    [
        ("hello", {}, TypeError, "messages must be a list"),
        ([[]], {}, ValueError, "the conversation is empty"),
        ([{"content": "x"}], {}, ValueError, r"messages\[0\] must be a dict with a role"),
        ([{"role": "robot", "content": "x"}], {}, ValueError, "unknown role: robot"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, ValueError, "text only"),
        (ASK, {"continue_final_message": True}, ValueError, "cannot both be True"),
        (ASK, {"chat_template": "{% if %}"}, ValueError, "not valid Jinja"),
        (ASK, {"chat_template_content_format": "openai"}, ValueError, "mini_vllm has not, because"),
        (ASK, {"lora_request": 1}, ValueError, "lora_request 1 is given, and LoRA is not enabled"),
    ],
)
def test_chats_that_are_refused(
    llm: LLM, messages: Any, more: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        llm.chat(messages, FOUR, use_tqdm=False, **more)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.usefixtures("jinja2")
def test_the_tokenizers_chat_template(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(ASK, tokenize=False, add_generation_prompt=True)
    assert text == ASKED
    ids = tokenizer.encode(ASKED, add_special_tokens=False)
    given = tokenizer.apply_chat_template(ASK, add_generation_prompt=True)
    assert given == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert tokenizer.apply_chat_template(ASK, return_dict=False) == ids[:-1]
    assert tokenizer.convert_ids_to_tokens([1, 40, 9999]) == ["<bos>", "Ġ", None]
    assert (tokenizer.bos_token, tokenizer.eos_token, len(tokenizer)) == ("<bos>", "<eos>", 264)
    tokenizer.chat_template, template = None, tokenizer.chat_template
    try:
        with pytest.raises(ValueError, match="no chat template"):
            tokenizer.apply_chat_template(ASK)
    finally:
        tokenizer.chat_template = template


# -- many streams ---------------------------------------------------------------------------------


def test_the_async_engine_takes_the_same_arguments() -> None:
    async def use() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(num_gpu_blocks_override=64))
        try:
            assert engine.get_tokenizer() is engine.tokenizer
            stream = engine.generate("The KV cache", FOUR, "1", lora_request=None)
            outputs = [output async for output in stream]
            assert outputs[-1].metrics is not None
            assert outputs[-1].metrics.num_generation_tokens == 4
            assert await engine.reset_prefix_cache() is True
            with pytest.raises(ValueError, match="mini_vllm has not, because"):
                await anext(engine.generate("x", FOUR, "2", trace_headers={"a": "b"}))
            with pytest.raises(
                ValueError, match="lora_request 'y' is given, and LoRA is not enabled"
            ):
                await anext(engine.generate("x", FOUR, "3", lora_request="y"))
            with pytest.raises(AttributeError, match=r"AsyncLLM\.sleep: vLLM 0\.22\.1 has this"):
                engine.sleep()  # type: ignore[attr-defined]
        finally:
            engine.shutdown()

    asyncio.run(use())
