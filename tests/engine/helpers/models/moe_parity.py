"""Tiny random models through `mini_vllm` and real vLLM, all in this one process: the import costs most.

    python -m tests.engine.helpers.models.moe_parity FOLDER PROMPTS all|one [KIND ...]

First routers and experts alone (`moe_kernels.py`), then tokens.
`one`: one engine of each for a kind, with all that may go wrong at once: prefix caching, chunks of a small
budget, a pool too small for all. `all`: the three scenarios of `course.parity.tokens`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.parity.tokens import compare, make_prompts, make_scenarios, report
from course.parity.tokens_run import lift_the_fault, run_scenarios
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.moe_kernels import compare_experts, compare_routers
from tests.engine.helpers.models.moe_models import KINDS, make

POOL = 34
"""Blocks: enough for the longest request, which vLLM asks for, and little more."""
TOLERANCE = 1e-4


def main(folder: Path, count: int, which: str, kinds: list[str]) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    lift_the_fault()
    print("\n".join([*compare_routers(), compare_experts()]))
    for kind in kinds or list(KINDS):
        model = folder / kind
        make(kind, model)
        prompts = make_prompts(Tokenizer.from_folder(model).encode, 264, count)
        scenarios = make_scenarios(prompts, max(1, count // 5), pool=POOL)
        if which == "one":
            scenarios[2].prompts, scenarios[2].max_tokens = (
                scenarios[0].prompts,
                scenarios[0].max_tokens,
            )
            scenarios = scenarios[2:]
        ours = run_scenarios(str(model), scenarios, real=False)
        theirs = run_scenarios(str(model), scenarios, real=True)
        # Groups of ranks outlive an engine, and only those of a mixture are for experts.
        cleanup_dist_env_and_memory()
        found = [compare(*each) for each in zip(scenarios, ours, theirs, strict=True)]
        print(f"{kind}\n{report(found)}", flush=True)
        last = found[-1]
        assert last.preemptions[0], "nobody was preempted"
        assert last.cached_tokens, "nothing was reused"
        assert all(c.equal and c.max_logprob_difference <= TOLERANCE for c in found), kind


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
