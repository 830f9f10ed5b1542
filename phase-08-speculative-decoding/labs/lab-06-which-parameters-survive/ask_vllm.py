"""Ask vLLM's own validators what they let pass beside speculative decoding: `answers.json`.

    PYTHONPATH=. python phase-08-speculative-decoding/labs/lab-06-which-parameters-survive/ask_vllm.py

Needs vLLM 0.22.1, on any processor. What a platform changes afterwards is left out: a CPU switches
asynchronous scheduling off whatever the method.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from course.learner.labs import load_module

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FILE = HERE / "answers.json"
support = load_module(HERE / "support.py", "lab_08_06_support")
MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"


def make_config() -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(MODEL),
        max_model_len=512,
        dtype="float32",
        enforce_eager=True,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
    ).create_engine_config()


def ask_parameters(config: Any) -> dict[str, str]:
    """Each of SETTINGS, put to a server that speculates."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import build_logitsprocs
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor

    found = {}
    for name, values in support.SETTINGS.items():
        try:
            if name == "logits_processors":
                custom = [MinPLogitsProcessor]  # any class will do: it is not looked at
                build_logitsprocs(config, torch.device("cpu"), False, False, custom)
            else:
                SamplingParams(**values).verify(
                    config.model_config, config.speculative_config, None, None
                )
            found[name] = "passes"
        except ValueError:
            found[name] = "no start" if name == "logits_processors" else "refused"
    return found


def ask_methods(config: Any) -> dict[str, list[Any]]:
    """For each method: asynchronous by default, asynchronous where asked for, model runner V2 possible."""
    from vllm.platforms import current_platform

    found: dict[str, list[Any]] = {}
    for method in support.METHODS:
        config.speculative_config.method = method
        found[method] = []
        for asked in (None, True):
            config.scheduler_config.async_scheduling = asked
            config.scheduler_config.max_num_scheduled_tokens = None
            try:
                with patch.object(current_platform, "check_and_update_config"):
                    config.__post_init__()
                found[method].append(bool(config.scheduler_config.async_scheduling))
            except ValueError as error:
                if "async scheduling is only supported" not in str(error):
                    raise
                found[method].append("refused")
        unsupported = config._get_v2_model_runner_unsupported_features()
        found[method].append(not any("specul" in what for what in unsupported))
    return found


def main() -> None:
    config = make_config()
    answers = {
        "vllm": "0.22.1",
        "parameters": ask_parameters(config),
        "methods": ask_methods(config),
    }
    FILE.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
