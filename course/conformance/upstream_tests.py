"""vLLM's tests: where they are, or how to get them, and a folder to run them in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from mini_vllm.config.engine import DEFAULT_MODEL

RELEASE = "0.22.1"
# Those that speak of what the engine has, and need neither a GPU nor a model of some size; below tests/v1,
# or below tests.
FILES = (
    "core/test_async_scheduler.py",
    "core/test_kv_cache_utils.py",
    "core/test_output.py",
    "core/test_prefix_caching.py",
    "core/test_priority_scheduler_random.py",
    "core/test_repetition_detection.py",
    "core/test_reset_prefix_cache_e2e.py",
    "core/test_scheduler.py",
    "core/test_scheduler_e2e.py",
    "core/test_single_type_kv_cache_manager.py",
    "cudagraph/test_cudagraph_dispatch.py",
    "e2e/general/test_min_tokens.py",
    "engine/test_logprobs_processor.py",
    "engine/test_output_processor.py",
    "engine/test_parallel_sampling.py",
    "metrics/test_stats.py",
    "sample/test_logprobs.py",
    "sample/test_sampler.py",
    "sample/test_sampling_params_e2e.py",
    "samplers/test_logprobs.py",
    "structured_output/test_backend_guidance.py",
    "structured_output/test_utils.py",
    "test_request.py",
)
# Tests of theirs that are not run, and why.
LEFT_OUT = {
    "e2e/general/test_min_tokens.py::test_min_tokens_eos_behavior": "wants a text that ends: the shipped "
    "checkpoint's does in bfloat16, vLLM's choice here, and goes on in float32, in vLLM too",
    "sample/test_logprobs.py::test_get_logprobs_and_prompt_logprobs": "vLLM fails it here: its prompts are "
    "too long in the shipped checkpoint's tokens",
    "sample/test_logprobs.py::test_none_logprobs": "as the one above",
    "sample/test_logprobs.py::test_zero_logprobs": "as the one above",
    "structured_output/test_backend_guidance.py::test_backend_guidance_rollback_terminated": "vLLM fails it "
    "here: what it takes back and gives again fits together in gpt2's own tokens, not in those of one byte",
    "structured_output/test_backend_guidance.py::test_mistral_tokenizer_compile_grammar": "wants a tokenizer "
    "of Mistral's, which is in another format",
}
MODELS = (
    "facebook/opt-125m",
    "hmellor/tiny-random-LlamaForCausalLM",
    "meta-llama/Llama-3.2-1B",
    "Qwen/Qwen3-0.6B",
    "distilbert/distilgpt2",
    "gpt2",
)
BARE = ("gpt2",)  # whose tokenizer puts nothing before a text, where the shipped one puts <bos>
LONGEST = 2048  # tokens that those models take, which some tests count on
_ROOT = Path(__file__).parents[2]


def path_below_tests(name: str) -> str:
    """Where a file or test of the table stands below vLLM's folder `tests`."""
    return name if name.startswith("samplers/") else f"v1/{name}"


def cache_folder() -> Path:
    """Where a fetched archive's tests are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mini-vllm" / f"vllm-{RELEASE}-tests"


def find_tests(named: Path | None = None) -> Path:
    """The folder `tests` of vLLM's source: the one named, that of `upstream/vllm`, or a fetched one.

    Raises ValueError if the folder named holds no tests of vLLM's, or if they cannot be fetched.
    """
    if named is not None:
        for folder in (named, named / "tests"):
            if (folder / "v1" / "core").is_dir():
                return folder
        raise ValueError(f"{named} holds no tests of vLLM's: v1/core is not in it")
    return local_tests() or fetch_tests(cache_folder())


def local_tests() -> Path | None:
    """The folder of those that are here already; None if there is none."""
    for folder in (_ROOT / "upstream" / "vllm" / "tests", cache_folder()):
        if (folder / "v1" / "core").is_dir():
            return folder
    return None


def fetch_tests(to: Path) -> Path:
    """Fetch vLLM's source archive with pip, and keep its tests in `to`.

    pip asks an archive for its metadata before it hands it out. So this takes an environment with torch and
    the packages that UPSTREAM_PIN.md names for it.

    Raises ValueError with the end of pip's words if it fails.
    """
    settings = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": RELEASE}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "vllm",
            "--no-build-isolation", "--dest", folder, f"vllm=={RELEASE}",
        ]  # fmt: skip
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, encoding="utf-8"
        )
        archives = sorted(Path(folder).glob("vllm-*.tar.gz"))
        if done.returncode or not archives:
            raise ValueError(
                f"vLLM's source archive could not be fetched (see UPSTREAM_PIN.md): {done.stderr[-600:]}"
            )
        with tarfile.open(archives[0]) as archive:
            tests = [m for m in archive.getmembers() if m.name.split("/")[1:2] == ["tests"]]
            archive.extractall(folder, members=tests, filter="data")
        found = archives[0].with_name(archives[0].name.removesuffix(".tar.gz")) / "tests"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(found, to, dirs_exist_ok=True)
    return to


def make_workspace(tests: Path, folder: Path) -> None:
    """A folder for a run: vLLM's tests alone, so that its source does not hide the installed package, and a
    model under each name that they ask for. It is the shipped one, whose limit is raised to what they expect,
    and whose tokenizer adds `<bos>` only where theirs adds a token.
    """
    shutil.copytree(tests, folder / "tests")
    (folder / "pytest.ini").write_text(
        "[pytest]\n", "utf-8"
    )  # so that no file further up is taken for it
    for name in MODELS:
        model = folder / name
        shutil.copytree(DEFAULT_MODEL, model)
        for file, limit in (
            ("config.json", "max_position_embeddings"),
            ("tokenizer_config.json", "model_max_length"),
        ):
            settings = json.loads((model / file).read_text("utf-8"))
            (model / file).write_text(json.dumps(settings | {limit: LONGEST}), "utf-8")
        if name in BARE:
            tokenizer = model / "tokenizer.json"
            settings = json.loads(tokenizer.read_text("utf-8")) | {"post_processor": None}
            tokenizer.write_text(json.dumps(settings), "utf-8")
