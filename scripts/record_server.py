"""Write down what vLLM's own server answers to `tests/engine/helpers/server/server_parity/requests.jsonl`.

    HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 python scripts/record_server.py

runs the OpenAI server of the installed vLLM on the shipped checkpoint, in this process and on
whatever device it finds, and writes `vllm-VERSION.jsonl` beside them: a first line
with date and versions, then one answer a line. `--check` writes nothing and says what has changed.
`--suite tools` does the same for `tools.jsonl`.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from tests.engine.helpers.server.server_play import SERVERS, SUITES, play, requests  # noqa: E402

FLAGS = [
    "--served-model-name", "tiny-llama", "--dtype", "float32", "--enforce-eager",
    "--block-size", "16", "--max-num-seqs", "64", "--no-async-scheduling",
    "--scheduling-policy", "priority", "--gpu-memory-utilization", "0.3",
]  # fmt: skip


async def record(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every answer of vLLM's server, one application a way to start it, over one engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.api_server import (
        build_app,
        build_async_engine_client_from_engine_args,
        init_app_state,
    )
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    model = str(ROOT / "mini_vllm" / "checkpoints" / "tiny-llama")

    def parse(*more: str) -> Any:
        parser = make_arg_parser(FlexibleArgumentParser())
        return parser.parse_args(["--model", model, *FLAGS, *more])

    engine_args = AsyncEngineArgs.from_cli_args(parse())
    engine_args.distributed_executor_backend = UniProcExecutor
    async with build_async_engine_client_from_engine_args(engine_args) as engine:
        tasks = await engine.get_supported_tasks()
        apps = {}
        for name, options in SERVERS.items():
            more = []
            if "api_key" in options:
                more += ["--api-key", options["api_key"]]
            if "enable_prompt_tokens_details" in options:
                more += ["--enable-prompt-tokens-details"]
            if "tool_call_parser" in options:
                more += [
                    "--enable-auto-tool-choice",
                    "--tool-call-parser",
                    options["tool_call_parser"],
                ]
            args = parse(*more)
            os.environ["VLLM_SERVER_DEV_MODE"] = str(int(bool(options.get("dev"))))
            app = build_app(args, tasks, engine.model_config)
            await init_app_state(engine, app.state, args, tasks)
            apps[name] = app
        return await play(apps, cases)


def _portable(text: str) -> str:
    """Without the folders of this machine: vLLM's messages name its own files."""
    import vllm

    return text.replace(str(Path(vllm.__file__).parent.parent) + "/", "").replace(str(ROOT), "ROOT")


def facts() -> dict[str, Any]:
    import torch
    import vllm

    return {
        "date": datetime.date.today().isoformat(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "flags": " ".join(FLAGS),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--suite", choices=sorted(SUITES), default="server")
    args = parser.parse_args()
    check = args.check
    asked, answered = SUITES[args.suite]
    answers = asyncio.run(record(requests(asked)))
    lines = [_portable(json.dumps(answer, ensure_ascii=False)) for answer in answers]
    if not check:
        head = json.dumps(facts())
        answered.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
        return 0
    from tests.engine.helpers.server.server_compare import differences

    old = [json.loads(line) for line in answered.read_text(encoding="utf-8").splitlines()[1:]]
    found = [
        f"{before['name']}: {line}"
        for before, after in zip(old, map(json.loads, lines), strict=True)
        for line in differences(before, after)
    ]
    print("\n".join(found) or f"{len(lines)} answers, none has changed")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
