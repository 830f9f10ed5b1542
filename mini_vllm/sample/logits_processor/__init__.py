"""Another's step between logits and token, in vLLM's interface: one object for a whole batch.

Mirrors `vllm/v1/sample/logits_processor/`: `interface.py` (what a processor is and what it hears),
`state.py` (when it hears it), `load.py` and `adapter.py` (upstream in `__init__.py`). The arrays are numpy's
here and torch's there; a file that keeps to indexing, as `logits[rows, token_ids] = value`, runs in both.

The built-in processors (`min_tokens`, `logit_bias`, `min_p`) are plain functions of `sample/ops.py`
instead: the sampler calls them before the processors of the same kind, as upstream does.
"""

from mini_vllm.sample.logits_processor.adapter import AdapterLogitsProcessor, RequestLogitsProcessor
from mini_vllm.sample.logits_processor.interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
    RemovedRequest,
)
from mini_vllm.sample.logits_processor.state import LogitsProcessors, make_batch_update
from mini_vllm.sample.logitsprocs import LOGITSPROCS_GROUP, build_logitsprocs

__all__ = [
    "LOGITSPROCS_GROUP", "AdapterLogitsProcessor", "AddedRequest", "BatchUpdate", "LogitsProcessor",
    "LogitsProcessors", "MoveDirectionality", "MovedRequest", "RemovedRequest", "RequestLogitsProcessor",
    "build_logitsprocs", "make_batch_update",
]  # fmt: skip
