"""Faults of docs/FOUND_IN_VLLM.md, each tried on whichever vLLM `import vllm` finds.

    python -m course.faults.checks NAME ...

prints a line for each: its name, `wrong` or `well` or `not run`, and what was seen. `course.faults.releases`
runs it on each release. A check calls what the fault is in, alone where that will do, and judges what comes
out. `course.faults.releases.APART` are those that want a process without the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.faults.adapters import OF_ADAPTERS
from course.faults.checks_apart import IN_TRITON, INTERPRETED, ON_CARDS, Seen, name_the_package
from course.faults.cpu import SETTINGS
from mini_vllm.config.engine import DEFAULT_MODEL

# -- scheduler: worlds of the fuzz, and plans -------------------------------------------------------------


def world(name: str) -> Callable[[], Seen]:
    def check() -> Seen:
        from course.fuzz import known
        from course.fuzz.causes import goes_wrong
        from course.fuzz.engines import engine_of
        from course.fuzz.hunt import kind_of

        error = goes_wrong(getattr(known, name), lambda world: engine_of("vllm", world))
        return error is not None, kind_of(error) if error else "ends well"

    return check


def windows() -> Seen:
    # Not imported above: the helper is the tests', which an installed course has not.
    from course.parity.record import vllm_parts
    from tests.engine.helpers.scheduler.windows_with_drafts import read_after_giving_back

    read, taken = read_after_giving_back(lambda config: vllm_parts(config, True), 3)
    return read > 0, f"{read} blocks given back and read, {taken} of them another's by then"


def slots_of_a_drafter() -> Seen:
    """A prompt of one block, admitted: has its request a place for what a drafter of three writes?"""
    from course.parity.record import vllm_parts
    from course.parity.traces import Arrival, Config

    config: Config = {
        "block_size": 4, "num_blocks": 14, "max_num_seqs": 4, "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 64,
        "policy": "fcfs", "speculative_config": {"method": "eagle", "num_speculative_tokens": 3},
    }  # fmt: skip
    arrival: Arrival = {
        "id": "r", "step": 0, "prompt": [5, 6, 7, 8], "priority": 0, "max_tokens": 8,
        "ignore_eos": True, "abort": None,
    }  # fmt: skip
    parts = vllm_parts(config, True)
    parts.scheduler.add_request(parts.make_request(arrival, 0))
    parts.scheduler.schedule()
    [blocks] = parts.scheduler.kv_cache_manager.get_block_ids("r")
    return len(blocks) < 2, f"{len(blocks)} blocks of 4 after a prompt of 4"


def shared_prefix() -> Seen:
    """Three prompts with the same 64 tokens in front, a window of 16 in all layers: what the third finds."""
    from course.parity.record import vllm_parts
    from course.parity.traces import Arrival, Config

    config: Config = {
        "block_size": 4, "num_blocks": 100, "max_num_seqs": 4, "max_num_batched_tokens": 128,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": True, "max_model_len": 128,
        "policy": "fcfs", "kv_cache_groups": [{"type": "sliding_window", "size": 16}],
    }  # fmt: skip
    parts, found = vllm_parts(config), 0
    for i in range(3):
        arrival: Arrival = {
            "id": f"r{i}", "step": 0, "prompt": [*range(3, 67), *range(70 + 9 * i, 79 + 9 * i)],
            "priority": 0, "max_tokens": 1, "ignore_eos": True, "abort": None,
        }  # fmt: skip
        parts.scheduler.add_request(parts.make_request(arrival, i))
        plan = parts.scheduler.schedule()
        [new] = plan.scheduled_new_reqs
        found = new.num_computed_tokens
        parts.scheduler.update_from_output(plan, parts.make_output([f"r{i}"], [[5]]))
    return found == 0, f"the third of three prompts finds {found} of 64 tokens"


def pool() -> Seen:
    """Memory for just one longest request."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    def memory(worker: Any) -> int:
        specs = worker.model_runner.get_kv_cache_spec().values()
        return sum(2 * spec.page_size_bytes for spec in specs)  # two blocks of 32 for 64 tokens

    kept = CPUWorker.determine_available_memory
    CPUWorker.determine_available_memory = memory
    try:
        engine = start_engine()
    except ValueError as error:
        return False, f"refused: {str(error)[:60]}"
    finally:
        CPUWorker.determine_available_memory = kept
    blocks = engine.vllm_config.cache_config.num_gpu_blocks
    return blocks < 3, f"{blocks} blocks with the null block, where 64 tokens need 2"


# -- whole engines ----------------------------------------------------------------------------------------


def start_engine(folder: Path = DEFAULT_MODEL, **more: Any) -> Any:
    from course.faults.cpu import start

    return start(folder, **more).llm_engine


def seeded_prompt_in_chunks() -> Seen:
    from course.fuzz.real import play, situations

    world, seed = situations()["seeded, in chunks"]
    answer = play(world.with_settings(block_size=32), seed)  # later CPU builds know no 16
    return bool(answer.error), answer.error or f"ended after {answer.turns} turns"


def request_that_cannot_end() -> Seen:
    from course.faults.limits import end

    said = end(60)[0]
    return "not ended" in said, said


def window_of_no_layer() -> Seen:
    from course.faults.limits import window

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        said = window(Path(name, "gemma"))
    return not said[1].startswith("vLLM: 0 "), "; ".join(said[:2])


def mixture_without_a_kernel() -> Seen:
    from course.faults.cpu import mixture

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        said = mixture(Path(name, "experts"), 40)
    return "config is not set" in said, said


def mixture_admitted_by_mistake() -> Seen:
    from course.faults.cpu import mixture

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        said = mixture(Path(name, "experts"), 48)
    return "tile_size" in said, said


def cache_unasked() -> Seen:
    from course.faults.cpu import silence

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        said = silence(Path(name, "asks"))
    return "auto" in said[0] and "fp8" in said[1], "; ".join(said[:3])


def neighbour() -> Seen:
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from course.faults.sampling import ENGINE

    engine = ENGINE | {"block_size": 32}  # later CPU builds know no 16
    llm = LLM(**engine, distributed_executor_backend=UniProcExecutor)
    asked = [
        SamplingParams(temperature=0, max_tokens=1, logprobs=5),
        SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=[40]),
    ]
    prompts = [{"prompt_token_ids": [1, 5, 6, 7]}, {"prompt_token_ids": [1, 8, 9]}]
    [alone] = llm.generate(prompts[:1], asked[:1], use_tqdm=False)
    beside, _ = llm.generate(prompts, asked, use_tqdm=False)
    tokens = [set(output.outputs[0].logprobs[0]) for output in (alone, beside)]
    return tokens[0] != tokens[1], f"{len(tokens[0])} alone, beside it {sorted(tokens[1])}"


def bias_of_qwen3() -> Seen:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 264,
        "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64,
        "attention_bias": True, "torch_dtype": "float32",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        Path(name, "config.json").write_text(json.dumps(config), encoding="utf-8")
        engine = start_engine(Path(name), load_format="dummy", skip_tokenizer_init=True)
        [names] = engine.apply_model(lambda model: [n for n, _ in model.named_parameters()])
    found = sorted(n.rpartition("self_attn.")[2] for n in names if n.endswith("proj.bias"))
    return "o_proj.bias" not in found, f"biases: {', '.join(found)}"


def missing_projection() -> Seen:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(shutil.copytree(DEFAULT_MODEL, Path(name, "less")))
        [file] = folder.glob("*.safetensors")
        tensors = load_file(file)
        del tensors["model.layers.0.mlp.down_proj.weight"]
        save_file(tensors, file)
        try:
            start_engine(folder)
        except Exception as error:
            return False, f"refused: {type(error).__name__}: {str(error)[:60]}"
    return True, "loads without a word"


def consolidated_below() -> Seen:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(shutil.copytree(DEFAULT_MODEL, Path(name, "more")))
        (folder / "original").mkdir()
        [file] = folder.glob("*.safetensors")
        shutil.copy(file, folder / "original" / "consolidated.safetensors")
        try:
            start_engine(folder)
        except Exception as error:
            return True, f"{type(error).__name__}: {str(error).replace(name, '')[:60]}"
    return False, "loads"


def preemptions_in_the_log() -> Seen:
    from vllm.v1.metrics.loggers import LoggingStatLogger
    from vllm.v1.metrics.stats import IterationStats

    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.v1.metrics.loggers")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    stats = IterationStats()
    stats.num_generation_tokens, stats.num_preempted_reqs = 5, 3
    log = LoggingStatLogger(start_engine().vllm_config)
    log.record(None, stats)
    log.log()
    [line] = [line for line in lines if "generation throughput" in line]
    return "Preemptions: 3" not in line, line


# -- functions, called alone ------------------------------------------------------------------------------


def seed_beside_a_neighbour() -> Seen:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    tokens = set()
    with torch.compiler.set_stance("force_eager"):
        for _ in range(10):
            generators = {0: torch.Generator().manual_seed(7)}
            drawn, _ = TopKTopPSampler().forward_cpu(torch.zeros(2, 1000), generators, None, None)
            tokens.add(int(drawn[0]))
    return len(tokens) > 1, f"{len(tokens)} tokens in ten draws with one seed"


def drafts_without_a_temperature() -> Seen:
    import torch
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    if hasattr(cpu_triton_utils, "expand_kernel"):  # later releases find the stand-in themselves
        rejection_sampler.expand_kernel = cpu_triton_utils.expand_kernel
    given, ends = torch.tensor([0.7, 0.5]), torch.tensor([2, 3], dtype=torch.int32)
    try:
        found = rejection_sampler.expand_batch_to_tokens(given, ends, 3)
    except TypeError:  # 0.30.0 starts no stand-in: call it
        found = torch.empty(3)
        cpu_triton_utils.expand_kernel[1](found, given, ends, 0, 0)
    right = torch.tensor([0.7, 0.7, 0.5])
    same = torch.equal(found, right)
    return not same, f"{'' if same else 'not '}0.7 0.7 0.5"


def token_after_a_chunk() -> Seen:
    """A prompt of eight tokens, half computed: the token that an EAGLE head reads beside the last state."""
    import numpy as np
    import torch
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    request = SimpleNamespace(get_token_id=lambda i: 100 + i, num_computed_tokens=0, num_tokens=8)
    batch = SimpleNamespace(
        num_reqs=1, req_ids=["r"], num_tokens_no_spec=np.array([8]), vocab_size=264,
        num_computed_tokens_cpu=np.array([0]),
    )  # fmt: skip
    buffer = SimpleNamespace(np=np.zeros(1, np.int32), gpu=None, copy_to_gpu=lambda n: None)
    buffer.gpu = torch.from_numpy(buffer.np)
    proposer: Any = SimpleNamespace(backup_next_token_ids=buffer)
    try:
        SpecDecodeBaseProposer.prepare_next_token_ids_padded(
            proposer, torch.zeros(1, 1, dtype=torch.int32), {"r": request}, batch,
            torch.ones(1, dtype=torch.bool),
        )  # fmt: skip
    except (
        TypeError,
        AttributeError,
    ):  # the kernel, which the CPU has no stand-in for; the token stands
        if not buffer.np[0]:
            raise
    return int(buffer.np[0]) == 107, f"reads token {int(buffer.np[0]) - 100} of 0 to 7"


def balancedness() -> Seen:
    """All tokens on one GPU of two, in both layers."""
    import torch
    from vllm.distributed.eplb import eplb_state

    group = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    module: Any = eplb_state
    module.get_ep_group = lambda: SimpleNamespace(device_group=group)
    module.all_reduce = lambda *_, **__: None
    lines: list[str] = []
    module.logger = SimpleNamespace(info=lambda text, *args: lines.append(text % args))
    state: Any = object.__new__(eplb_state.EplbState)
    state.__dict__ |= {
        "parallel_config": SimpleNamespace(
            eplb_config=SimpleNamespace(log_balancedness_interval=1, window_size=4)
        ),
        "is_async": False, "expert_rearrangement_step": 0, "expert_rearrangement_step_interval": 100,
        "expert_load_window_size": 4, "expert_load_window_step": 0, "should_record_tensor": None,
        "model_states": {
            "m": SimpleNamespace(
                expert_load_pass=torch.tensor([[60, 40, 0, 0]] * 2, dtype=torch.int32),
                expert_load_window=torch.zeros(4, 2, 4, dtype=torch.int32),
                model_name="m",
            )
        },
    }  # fmt: skip
    try:
        state.step(log_stats=True)
    except AttributeError:
        if not lines:  # what comes behind the line does not matter
            raise
    return "balancedness=1.0000" in lines[0], lines[0].partition("model m: ")[2].partition(
        ", steps"
    )[0]


def beam_with_anothers_end() -> Seen:
    """Two beams, whose first has a drawn token beside the four likeliest; the second ends."""
    from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
    from vllm.sampling_params import BeamSearchParams

    eos = 2
    first = {10: -0.1, 11: -0.2, 12: -9.0, 13: -9.0}
    # The fifth entry moves the second beam's by one place, so its EOS stands where a third beam's would.
    after = {
        10: {99: -30.0, 20: -1.0, 21: -8.0, 22: -9.0, 23: -9.5},
        11: {30: -1.0, 31: -8.0, 32: -9.0, eos: -0.5},
    }

    class Client:
        input_processor = SimpleNamespace(
            resolve_watermarking=lambda params: None, generation_config_fields={}, vllm_config=None
        )

        async def generate(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            last = prompt["prompt_token_ids"][-1]
            logprobs = after.get(last, first)
            entry = {t: SimpleNamespace(logprob=p, rank=None) for t, p in logprobs.items()}
            one = SimpleNamespace(finish_reason="length", logprobs=[entry])
            yield SimpleNamespace(outputs=[one])

    class Search(BeamSearchOnlineMixin):
        engine_client: Any = Client()
        renderer: Any = SimpleNamespace(
            get_tokenizer=lambda: SimpleNamespace(eos_token_id=eos, decode=lambda ids, **how: "")
        )

    params = BeamSearchParams(
        beam_width=2, max_tokens=2, temperature=1.0, include_stop_str_in_output=True
    )
    if hasattr(params, "configure_logprobs"):
        # It asks a model's configuration, which is not what this is about.
        type(params).configure_logprobs = lambda *args: None

    async def search() -> list[list[int]]:
        prompt: Any = {"type": "token", "prompt_token_ids": [1, 5], "prompt": ""}
        outputs = [out async for out in Search().beam_search(prompt, "0", params)]
        return [list(one.token_ids) for one in outputs[-1].outputs]

    try:
        beams = asyncio.run(search())
    except IndexError as error:
        return True, f"IndexError: {error}"
    [ended] = [tokens for tokens in beams if tokens[-1] == eos] or [[]]
    return ended != [11, eos], f"the end came after {ended[:-1]}, it was {11}'s"


CHECKS: dict[str, Callable[[], Seen]] = {
    "bystander": world("BYSTANDER"), "equals": world("EQUALS"), "doubled": world("DOUBLED"),
    "deadly": world("DEADLY"), "lost": world("LOST"), "taken-back": world("TAKEN_BACK"),
    "windows": windows, "shared-prefix": shared_prefix, "drafter": slots_of_a_drafter, "pool": pool,
    "chunks": seeded_prompt_in_chunks, "end": request_that_cannot_end,
    "window": window_of_no_layer, "silence": cache_unasked, "neighbour": neighbour,
    "bias": bias_of_qwen3, "missing": missing_projection, "below": consolidated_below,
    "preemptions": preemptions_in_the_log, "seed": seed_beside_a_neighbour,
    "temperature": drafts_without_a_temperature, "after-a-chunk": token_after_a_chunk,
    "balancedness": balancedness, "beam": beam_with_anothers_end,
    "mixture-config": mixture_without_a_kernel, "mixture-tile": mixture_admitted_by_mistake,
    **ON_CARDS, **IN_TRITON, **OF_ADAPTERS,
}  # fmt: skip


def main(names: list[str]) -> int:
    os.environ |= SETTINGS
    if set(names) & ON_CARDS.keys():
        from course.faults import cards

        os.environ |= cards.kernels.topics.ON_PAPER
    elif set(names) & (IN_TRITON.keys() | OF_ADAPTERS.keys()):
        os.environ |= INTERPRETED
        if set(names) & IN_TRITON.keys():
            name_the_package()
    else:
        from course.faults.old_kernels import use

        use()
    for name in names:
        try:
            wrong, seen = CHECKS[name]()
            verdict = "wrong" if wrong else "well"
        except Exception as error:
            verdict, seen = "not run", f"{type(error).__name__}: {error}"
        print(f"{name}\t{verdict}\t{' '.join(seen.split())[:160]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
