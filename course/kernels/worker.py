"""The child that `course.kernels.bench` starts: python -m course.kernels.worker REQUEST ANSWER.

REQUEST is JSON. To the file ANSWER goes a line "ready" when everything that is not the learner's has
worked, then one line of JSON for each kernel file, as soon as it is judged.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from course.kernels.problems import PROBLEMS
from course.kernels.report import to_data


def main(request: dict[str, Any], answer: Path) -> None:
    from course.kernels.loading import stand_in_for_a_gpu

    stand_in_for_a_gpu()
    problem = importlib.import_module(PROBLEMS[request["problem"]])
    judge: Any
    if os.environ.get("TRITON_INTERPRET") == "1":
        from course.kernels.interpret import Interpreted

        judge = Interpreted(problem, request["judges"], request["vllm"])
    else:
        from course.kernels.compiled import Compiled

        judge = Compiled(problem, request["vllm"])
    with answer.open("w", encoding="utf-8") as out:
        print('"ready"', file=out, flush=True)
        for file in request["files"]:
            findings, starts = judge.judge(Path(file))
            answered = {"findings": to_data(findings), "starts": starts}
            print(json.dumps(answered), file=out, flush=True)
    judge.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
