"""Two starts of vLLM's compiler on the CPU in one process, for test_phase_05_compile.py. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.authors.topic_helpers import load_scripts

PHASE = Path(__file__).resolve().parents[2] / "phase-05-cuda-graphs"


def main() -> None:
    [script] = load_scripts(PHASE, "vllm_compile")
    os.environ |= script.SETTINGS
    with tempfile.TemporaryDirectory() as root:
        os.environ["VLLM_CACHE_ROOT"] = root
        from vllm.compilation.counter import compilation_counter as counter
        from vllm.platforms.cpu import CpuPlatform

        CpuPlatform.simple_compile_backend = (
            "eager"  # helpers of the sampler: not what is asked about
        )
        kept = script.KEPT | {"backend": "inductor"}  # else the model would get that one, too
        script.keep_mode()
        seen = script.watch_split()
        first = script.engine(compilation_config=kept)
        pieces = [script.operators(piece) for piece in seen[1] if piece.is_splitting_graph]
        found = {
            "layers": first.llm_engine.model_config.hf_config.num_hidden_layers,
            "pieces": len(seen[1]),
            "outside": pieces,
            "saved": counter.num_compiled_artifacts_saved,
            "tokens": script.answers(first),
        }
        del first
        second = script.engine(compilation_config=kept)
        found["loaded"] = counter.num_compiled_artifacts_loaded
        found["aot loaded"] = counter.num_aot_artifacts_loaded
        found["saved again"] = counter.num_compiled_artifacts_saved - int(str(found["saved"]))
        eager = script.engine(enforce_eager=True)
        found["tokens"] = [found["tokens"], script.answers(second), script.answers(eager)]
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
