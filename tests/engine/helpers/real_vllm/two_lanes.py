"""Play requests on vLLM's core, with one batch at a time and with two in flight.

As a program (`course.parity.tokens_run.run_worker`): the job is {name: [ahead, prompt, params]}, the
answer the calls of each, as `phase-01-architecture/lanes.py` records them, and what that script
shows itself, as text and as a picture.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

PHASE = Path(__file__).resolve().parents[4] / "phase-01-architecture"


def play(job: dict[str, Any]) -> dict[str, Any]:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    lanes = load_module(PHASE / "lanes.py", "lanes_01")
    engines = {False: lanes.Recorder(UniProcExecutor), True: lanes.Recorder(lanes.TwoLanes)}
    answer: dict[str, Any] = {}
    for name, (ahead, prompt, params) in job.items():
        answer[name] = [asdict(call) for call in engines[ahead].run(prompt, **params)]
    answer["texts"], answer["svg"] = lanes.show(engines)
    return answer


if __name__ == "__main__":
    job_path, answer_path = map(Path, sys.argv[1:])
    answer_path.write_text(json.dumps(play(json.loads(job_path.read_text()))), encoding="utf-8")
