"""Given: real vLLM on two Ray nodes, which are here two sets of processes on one machine.

Needs vLLM 0.22.1 and the extra `ray`, on Linux; `course grade` needs neither. It takes some minutes.

    python in_ray.py              tokens on one rank, two ranks and two nodes; then one node ends, or freezes
    python in_ray.py --record     the same, and write ray.json; or a part of it, "one rank", "is killed"
    python in_ray.py --show       print ray.json, without vLLM and Ray

Neither node has a GPU. `ray_cpu/` tells vLLM that Ray may count this platform's devices as GPUs, and each
node says that it has one. The node that is killed ends with all its processes, so its sockets close. In the
one that freezes all are stopped: as when a machine loses power or its network, nothing closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from course.learner.labs import need_vllm
from mini_vllm.config.engine import DEFAULT_MODEL

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECORD = HERE / "ray.json"
PROMPTS = ["The KV cache", "A block"]
NUM_TOKENS = 16
SETTINGS: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024}
CHUNKS_BEFORE = 20
"""So many pieces of the stream has the client when something happens to the second node."""
ANSWERS = {"one rank": ("mp", 1), "two ranks": ("mp", 2), "two nodes": ("ray", 2)}
LOSSES = {"SIGKILL": "is killed", "SIGSTOP": "freezes"}
ROADS = {"-": "-", "_CPUSHMDistributed": "shared memory", "torch.distributed": "gloo, TCP"}
PATIENCE = 240.0
"""Seconds that a client waits for anything."""


def environment(on_ray: bool = True) -> dict[str, str]:
    """For every process that is started here. Those that are to run on Ray find `ray_cpu/`."""
    platforms = [str(HERE / "ray_cpu")] if on_ray else []
    paths = [str(ROOT), *platforms, os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processes_of(process: subprocess.Popen[bytes]) -> list[Any]:
    """A process and all that it has started, as psutil has them."""
    import psutil

    try:
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    for each in processes_of(process):
        with contextlib.suppress(Exception):
            each.send_signal(number)


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Two Ray nodes with one logical GPU each. Gives the cluster's address and the second node's process.

    The second has another address of the loopback, so that Ray tells the two apart.
    """
    port = free_port()
    common = ["--block", "--num-cpus=2", "--num-gpus=1", "--object-store-memory=100000000"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *common]
    quiet: dict[str, Any] = {
        "env": environment(),
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    nodes = []
    try:
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        nodes.append(subprocess.Popen([*ray, *head], **quiet))
        address = f"{my_ip()}:{port}"
        wait_until(lambda: is_listening(port), "the first Ray node")
        second = [f"--address={address}", "--node-ip-address=127.0.0.2"]
        nodes.append(subprocess.Popen([*ray, *second], **quiet))
        asked = [sys.executable, __file__, "--wait-for-nodes", address]
        subprocess.run(asked, env=environment(), check=True, timeout=PATIENCE)
        yield address, nodes[1]
    finally:
        for node in reversed(nodes):
            for each in processes_of(node):
                with contextlib.suppress(Exception):
                    each.kill()
            node.wait()


def my_ip() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((my_ip(), port)) == 0


def wait_until(holds: Any, what: str, patience: float = PATIENCE) -> float:
    """Seconds until it holds. Raises TimeoutError."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > patience:
            raise TimeoutError(f"{what} is not there after {patience:.0f} seconds")
        time.sleep(0.05)
    return time.monotonic() - start


def wait_for_nodes(address: str) -> None:
    """In a process of its own: until the cluster has two GPUs."""
    import ray

    def joined() -> bool:
        try:  # the first node may not be ready for it
            ray.init(address, logging_level="ERROR", ignore_reinit_error=True)
            return bool(ray.cluster_resources().get("GPU") == 2)
        except (ConnectionError, RuntimeError):
            return False

    wait_until(joined, "the second Ray node")


# ---- tokens ---------------------------------------------------------------------------------------


def where(worker: Any) -> tuple[int, int, str]:
    """In a rank: its process, its parent, and what carries its sums."""
    from vllm.distributed import parallel_state

    communicator: Any = parallel_state.get_tp_group().device_communicator
    module = communicator.dist_module if communicator else None
    name = type(module).__name__ if module is not None else "-"
    return os.getpid(), os.getppid(), getattr(module, "__name__", name)


def answer(backend: str, size: int) -> None:
    """In a process of its own: print the tokens that vLLM gives, and where its ranks are, as JSON."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(DEFAULT_MODEL),
        tensor_parallel_size=size,
        distributed_executor_backend=backend,
        **SETTINGS,
    )
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(PROMPTS, greedy, use_tqdm=False)
    executor: Any = llm.llm_engine.model_executor
    handles = getattr(executor, "ray_worker_handles", [])
    found = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "executor": type(executor).__name__,
        "nodes": len({handle.node_id for handle in handles}) or 1,
        "sums": sorted({name for _, _, name in llm.collective_rpc(where)}),
    }
    print(json.dumps(found), flush=True)
    executor.shutdown()


def ask(backend: str, size: int, **more: str) -> dict[str, Any]:
    """`answer`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--answer", backend, str(size)],
        env=environment(backend == "ray") | more, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
    if not lines:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-6000:])
    found: dict[str, Any] = json.loads(lines[0])
    return found


# ---- a node dies ----------------------------------------------------------------------------------


@dataclass
class Client:
    """One request over HTTP, in a thread. Times are seconds on one clock.

    Attributes:
        status: of HTTP, None while there is none.
        times: when each line of the answer has come.
        last: the last lines.
        error: what ended the connection, if it did not end well.
        end: when it ended.
    """

    port: int
    body: dict[str, Any]
    status: int | None = None
    times: list[float] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    error: str = ""
    end: float | None = None

    def start(self) -> Client:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(self.body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                self.status = response.status
                self._read(response)
        except urllib.error.HTTPError as error:
            self.status = error.code
            self._read(error)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.end = time.monotonic()

    def find_error(self) -> str:
        """The error's type and code that the last lines hold, or what ended the connection."""
        line = next((line for line in self.last if '"error"' in line), "")
        if not line:
            return self.error
        error = json.loads(line.removeprefix("data: "))["error"]
        return f"{error['type']} {error['code']}"

    def _read(self, response: Any) -> None:
        for line in response:
            if line.strip():
                self.times.append(time.monotonic())
                self.last = [*self.last[-2:], line.decode().strip()]


@contextlib.contextmanager
def server(address: str, log: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """vLLM's server with one rank on each node. Gives its port and process, when it answers."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(DEFAULT_MODEL),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--tensor-parallel-size", "2", "--distributed-executor-backend", "ray",
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment() | {"RAY_ADDRESS": address},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: health(port) == 200 or process.poll() is not None, "the server")
            yield port, process
        finally:
            for each in processes_of(process):
                with contextlib.suppress(Exception):
                    each.kill()
            process.wait()


def health(port: int) -> int:
    """The status of /health; 0 where none answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def lose_the_node(number: signal.Signals, log: Path) -> dict[str, Any]:
    """What clients of the server see when the second node is sent a signal, and how long each thing takes."""
    ask_for: dict[str, Any] = {
        "model": "tiny",
        "prompt": PROMPTS[0],
        "temperature": 0,
        "ignore_eos": True,
    }
    with two_nodes() as (address, node), server(address, log) as (port, process):
        stream = Client(port, ask_for | {"max_tokens": 1000, "stream": True}).start()
        wait_until(lambda: len(stream.times) >= CHUNKS_BEFORE or stream.end, "the stream")
        start = time.monotonic()
        send_all(node, number)
        late = Client(port, ask_for | {"max_tokens": 4}).start()
        wait_until(lambda: stream.end, "the stream's end", 2 * PATIENCE)
        state = health(port)
        wait_until(lambda: late.end, "the other client's end")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        gone = time.monotonic() - start
        return {
            "signal": number.name,
            "stream": [stream.status, stream.find_error(), seconds(stream.end, start)],
            "late": [late.status, late.find_error(), seconds(late.end, start)],
            "health": state,
            "log": find_cause(log.read_text("utf-8", "replace")),
            "server": [process.poll(), round(gone, 1)],
        }


def find_cause(log: str) -> str:
    """What the server's log says first of the reason."""
    found = re.search(r"RayWorkerProc rank=\[\d\] died unexpectedly|Connection closed by peer", log)
    return found.group() if found else ""


def seconds(at: float | None, start: float) -> float | None:
    return None if at is None else round(at - start, 1)


def run_part(part: str, logs: Path) -> dict[str, Any]:
    """One of ANSWERS, or what is lost when the second node ends so."""
    if part in ANSWERS:
        backend, size = ANSWERS[part]
        if backend == "mp":
            return ask(backend, size)
        with two_nodes() as (address, _):
            return ask(backend, size, RAY_ADDRESS=address)
    name = next(name for name, what in LOSSES.items() if what == part)
    return lose_the_node(signal.Signals[name], logs / f"{name}.log")


def show(found: dict[str, Any]) -> None:
    """Print a record."""
    print(describe_answers(found["answers"]))
    print(f"\n{describe_losses(found)}")


def describe_answers(answers: dict[str, Any]) -> str:
    """A line for each."""
    plain = answers["one rank"]["tokens"]
    lines = []
    for name, one in ((name, answers[name]) for name in ANSWERS):
        same = "the same tokens" if one["tokens"] == plain else "OTHER TOKENS"
        lines.append(
            f"{name:10} {one['executor']:17} {one['nodes']} node(s)  {ROADS[one['sums'][0]]:14} {same}"
        )
    return "\n".join(lines)


def describe_losses(found: dict[str, Any]) -> str:
    """What came when, a line for each loss."""
    lines = ["second node  a stream ends                     a later request   the server ends"]
    for what in LOSSES.values():
        _, said, end = found[what]["stream"]
        status, _, late_end = found[what]["late"]
        code, gone = found[what]["server"]
        stream, late = f"{end:.1f} s, {said}", f"{late_end:.1f} s, HTTP {status}"
        lines.append(f"{what:11}  {stream:32}  {late:16}  {gone:.1f} s, code {code}")
    return "\n".join(lines)


def main(*words: str) -> None:
    if words[:1] == ("--answer",):
        answer(words[1], int(words[2]))
        return
    if words[:1] == ("--wait-for-nodes",):
        wait_for_nodes(words[1])
        return
    if words[:1] == ("--show",):
        show(json.loads(RECORD.read_text("utf-8")))
        return
    need_vllm()
    if find_spec("ray") is None:
        raise SystemExit("ray is not installed here: pip install -e '.[ray]', beside vLLM")
    logs = Path(tempfile.mkdtemp(prefix="in_ray_"))
    record = words[:1] == ("--record",)
    found: dict[str, Any] = {"answers": {}}
    for part in words[1:] or (*ANSWERS, *LOSSES.values()):
        one = run_part(part, logs)
        if record:  # which holds other parts of other runs
            found = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else found
        (found["answers"] if part in ANSWERS else found)[part] = one
        found |= {
            "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
            "vllm": "0.22.1", "ray": version("ray"), "torch": version("torch"),
        }  # fmt: skip
        if record:
            RECORD.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(part, json.dumps(one), flush=True)
    if len(found["answers"]) == len(ANSWERS) and all(what in found for what in LOSSES.values()):
        show(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
