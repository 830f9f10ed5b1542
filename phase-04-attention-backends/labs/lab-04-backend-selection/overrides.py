"""Lab 04-04: what vLLM says when somebody asks for a backend, from the flag to the log.

    python phase-04-attention-backends/labs/lab-04-backend-selection/overrides.py
    python phase-04-attention-backends/labs/lab-04-backend-selection/overrides.py --only cpu
    python phase-04-attention-backends/labs/lab-04-backend-selection/overrides.py --record

Without `--record` it shows what overrides.json holds. With it, vLLM is asked anew (0.22.1, its CPU build will
do). For a GPU the flags go through vLLM's own parser and `EngineArgs`, and `get_attn_backend` is asked as an
attention layer asks it; cuda_stand_in.py says what stands in for the GPU. For the CPU a real engine is
started for each, and it answers a prompt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402

RECORD = HERE / "overrides.json"
MODEL = "mini_vllm/checkpoints/tiny-llama"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
OLD = "VLLM_ATTENTION_BACKEND"  # gone: VLLM_ATTENTION_BACKEND
LLAMA = {"head_size": 128}
DEEPSEEK = {"head_size": 576, "use_mla": True, "num_heads": 16}
# Some MLA backends look into the model's config, so it has to be like DeepSeek's there.
DEEPSEEK_CONFIG = json.dumps({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})

# A name, the capability, the flags, the environment, and what the layer asks with.
GPU_CASES: tuple[tuple[str, tuple[int, int], list[str], dict[str, str], dict[str, Any]], ...] = (
    ("nothing asked for, A100", (8, 0), [], {}, LLAMA),
    ("the flag", (8, 0), ["--attention-backend", "TRITON_ATTN"], {}, LLAMA),
    ("the config", (8, 0), ["--attention-config.backend", "flashinfer"], {}, LLAMA),
    ("the config, in short", (8, 0), ["-ac.backend", "FLEX_ATTENTION"], {}, LLAMA),
    ("auto", (8, 0), ["--attention-backend", "auto"], {}, LLAMA),
    ("the old variable", (8, 0), [], {OLD: "TRITON_ATTN"}, LLAMA),
    (
        "both", (8, 0),
        ["--attention-backend", "TRITON_ATTN", "--attention-config.backend", "TRITON_ATTN"], {}, LLAMA,
    ),
    ("a wrong name", (8, 0), ["--attention-backend", "NOSUCH"], {}, LLAMA),
    ("a wrong name in the config", (8, 0), ["--attention-config.backend", "NOSUCH"], {}, LLAMA),
    ("FLASH_ATTN, T4", (7, 5), ["--attention-backend", "FLASH_ATTN"], {}, LLAMA),
    ("FLASHMLA, A100", (8, 0), ["--attention-backend", "FLASHMLA"], {}, LLAMA),
    ("FLASHMLA, DeepSeek, A100", (8, 0), ["--attention-backend", "FLASHMLA"], {}, DEEPSEEK),
    ("blocks of 8, A100", (8, 0), ["--block-size", "8"], {}, LLAMA),
    ("DeepSeek, B200", (10, 0), [], {}, DEEPSEEK),
    ("blocks of 16, DeepSeek, B200", (10, 0), ["--block-size", "16"], {}, DEEPSEEK),
)  # fmt: skip
# A name, the arguments of `LLM`, and the environment.
CPU_CASES: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("nothing asked for, CPU", {}, {}),
    ("FLASHINFER, CPU", {"attention_backend": "FLASHINFER"}, {}),
    ("in the config, CPU", {"attention_config": {"backend": "TRITON_ATTN"}}, {}),
    ("the old variable, CPU", {}, {OLD: "TRITON_ATTN"}),
    ("a wrong name, CPU", {"attention_backend": "NOSUCH"}, {}),
)
TELLING = ("ttention backend", "backend on CPU", "Using %s backend", "precluded", "environment var")


class Listen(logging.Handler):
    """Keeps the lines about backends, and about variables that vLLM does not know."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        own = "environment variable" not in record.msg or OLD in record.getMessage()
        if own and any(words in str(record.msg) for words in TELLING):
            self.lines.append(f"{record.levelname} {record.getMessage()}")


def listen() -> Listen:
    """From now on."""
    import vllm.logger

    vllm.logger._print_info_once.cache_clear()
    handler = Listen()
    logger = logging.getLogger("vllm")
    logger.handlers = [handler]
    return handler


def on_gpus() -> list[dict[str, Any]]:
    """Every case of GPU_CASES."""
    gpu = load_module(HERE / "cuda_stand_in.py", "lab_04_04_stand_in").stand_in()
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.selector import get_attn_backend

    records = []
    for name, capability, flags, environment, layer in GPU_CASES:
        gpu.become(capability)
        heard = listen()
        os.environ.update(environment)
        record = {"name": name, "flags": flags, "environment": environment}
        try:
            parser = EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
            model = ["--hf-overrides", DEEPSEEK_CONFIG] if layer is DEEPSEEK else []
            given = parser.parse_args(["--model", MODEL, "--dtype", "float16", *model, *flags])
            config = EngineArgs.from_cli_args(given).create_engine_config()
            with set_current_vllm_config(config):
                chosen = get_attn_backend(dtype=torch.float16, kv_cache_dtype="auto", **layer)
            record["backend"] = chosen.get_name()
        except (ValueError, argparse.ArgumentError) as error:
            record["error"] = [type(error).__name__, str(error)]
        for variable in environment:
            del os.environ[variable]
        records.append({**record, "lines": heard.lines})
    return records


def on_the_cpu() -> list[dict[str, Any]]:
    """Every case of CPU_CASES."""
    import vllm
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.selector import _cached_get_attn_backend
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    records = []
    for name, arguments, environment in CPU_CASES:
        heard = listen()
        _cached_get_attn_backend.cache_clear()
        os.environ.update(environment)
        record: dict[str, Any] = {"name": name, "arguments": arguments, "environment": environment}
        try:
            llm = vllm.LLM(
                str(ROOT / MODEL), dtype="float32", enforce_eager=True, block_size=16, max_model_len=128,
                distributed_executor_backend=UniProcExecutor, **arguments,
            )  # fmt: skip
            layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
            names = {x.attn_backend.get_name() for x in layers if isinstance(x, Attention)}
            [record["backend"]] = names
            params = vllm.SamplingParams(temperature=0, max_tokens=6)
            [out] = llm.generate(["The long chat began"], params, use_tqdm=False)
            record["answer"] = list(out.outputs[0].token_ids)
        except ValueError as error:
            record["error"] = [type(error).__name__, str(error)]
        for variable in environment:
            del os.environ[variable]
        records.append({**record, "lines": heard.lines})
    return records


def ask_vllm() -> dict[str, Any]:
    """All of it, GPUs and CPU each in a process of its own."""
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    records = {}
    for where in ("gpus", "cpu"):
        done = subprocess.run(
            [sys.executable, __file__, "--child", where],
            env=env, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"vLLM ended with status {done.returncode}:\n{done.stderr[-3000:]}")
        [records[where]] = [
            json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("LAB ")
        ]
    made = records["cpu"].pop(0)
    return {"made": {"command": COMMAND, **made}, **records}


def how() -> dict[str, Any]:
    """Date, machine and versions."""
    import platform

    import torch
    import vllm

    asking = load_module(HERE / "asking.py", "lab_04_04_asking")
    versions = {"vllm": vllm.__version__, "torch": torch.__version__.partition("+")[0]}
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": asking.processor(),
        "versions": versions | {"python": platform.python_version()},
    }


def show(records: list[dict[str, Any]]) -> None:
    """Each case: what was asked for, what was said, what came of it."""
    for record in records:
        asked = [
            *record.get("flags", ()),
            *(f"{k}={v!r}" for k, v in record.get("arguments", {}).items()),
        ]
        asked += [f"{k}={v} in the environment" for k, v in record["environment"].items()]
        print(f"{record['name']}: {' '.join(asked)}".rstrip(": "))
        lines = list(record["lines"])
        if "error" in record:
            kind, text = record["error"]
            lines.append(f"{kind}: {' '.join(text.split())}")
        for line in lines:
            wrapped = textwrap.wrap(line, 104, break_long_words=False, break_on_hyphens=False)
            print("\n".join(f"  {'  ' if i else ''}{part}" for i, part in enumerate(wrapped)))
        if "backend" in record:
            words = f", and the answer {record['answer']}" if "answer" in record else ""
            print(f"  -> {record['backend']}{words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="gpus, cpu, or cases by name")
    parser.add_argument(
        "--record", nargs="?", const=RECORD, type=Path, help="ask vLLM, and keep it"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        said = on_gpus() if args.child == "gpus" else [how(), *on_the_cpu()]
        print("LAB " + json.dumps(said), flush=True)
        return
    if args.record:
        args.record.write_text(json.dumps(ask_vllm(), indent=1) + "\n", encoding="utf-8")
    read = json.loads((args.record or RECORD).read_text(encoding="utf-8"))
    for where in ("gpus", "cpu"):
        wanted = [
            record
            for record in read[where]
            if not args.only or where in args.only or record["name"] in args.only
        ]
        show(wanted)


if __name__ == "__main__":
    main()
