"""The pairs of phase 05: modes and sizes, the dispatcher, recording and replay, pieces, the runner, torch.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_MODES, _DISPATCHER = "mini_vllm/cudagraph/modes.py", "mini_vllm/cudagraph/dispatcher.py"
_GRAPH, _PROGRAM = "mini_vllm/cudagraph/graph.py", "mini_vllm/cudagraph/program.py"
_FORWARD, _TORCH = "mini_vllm/worker/graph_forward.py", "mini_vllm/gpu/cudagraph.py"
_COMPILATION, _CONFIG = "vllm/config/compilation.py", "vllm/config/vllm.py"
_CUDA_GRAPH, _BACKENDS = "vllm/compilation/cuda_graph.py", "vllm/compilation/backends.py"
_THEIR_RUNNER = "vllm/v1/worker/gpu_model_runner.py"

# fmt: off
CUDAGRAPH: dict[str, tuple[Pair, ...]] = {
    "cudagraph_modes": (
        Pair("five modes", f"{_MODES} CUDAGraphMode"),
        Pair("of a uniform decode batch", f"{_MODES} CUDAGraphMode.decode_mode"),
        Pair("of any other batch", f"{_MODES} CUDAGraphMode.mixed_mode"),
        Pair("a graph's shape", f"{_MODES} BatchDescriptor"),
        Pair("what a backend can bear", f"{_MODES} AttentionCGSupport"),
        Pair("a mode lowered to that", f"{_MODES} resolve_cudagraph_mode"),
        Pair("the capture sizes", f"{_MODES} cudagraph_capture_sizes"),
        Pair("the largest", f"{_MODES} cudagraph_capture_sizes",
             f"`{_CONFIG}:1661 in VllmConfig._set_cudagraph_sizes`",
             "largest = min(max_num_seqs", "max_cudagraph_capture_size"),
        Pair("in whole requests", f"{_MODES} adjust_cudagraph_sizes_for_spec_decode"),
    ),
    "cudagraph_dispatch": (
        Pair("one count of tokens for all?", f"{_DISPATCHER} is_uniform_decode"),
        Pair("padded size of every size",
             f"{_DISPATCHER} CudagraphDispatcher._compute_bs_to_padded_graph_size"),
        Pair("all keys", f"{_DISPATCHER} CudagraphDispatcher._initialize_cudagraph_keys"),
        Pair("mode and key of a step", f"{_DISPATCHER} CudagraphDispatcher.dispatch"),
        Pair("what to capture, in order", f"{_DISPATCHER} CudagraphDispatcher.get_capture_descs"),
    ),
    "cudagraph_recording": (
        Pair("one graph a shape", f"{_GRAPH} GraphRunner"),
        Pair("another mode passes through", f"{_GRAPH} GraphRunner.__call__",
             f"`{_CUDA_GRAPH}:246 in CUDAGraphWrapper.__call__`",
             "if runtime_mode is not self.runtime_mode", "runtime_mode"),
        Pair("the entry of the shape", f"{_GRAPH} GraphRunner.__call__",
             f"`{_CUDA_GRAPH}:263 in CUDAGraphWrapper.__call__`",
             "entry = self.entries.get(", "entry"),
        Pair("still allowed?", f"{_GRAPH} GraphRunner._capture",
             "vllm/compilation/monitor.py validate_cudagraph_capturing_enabled",
             "if not self.counter.capturing_enabled"),
        Pair("capture", f"{_GRAPH} GraphRunner._capture",
             f"`{_CUDA_GRAPH}:313 in CUDAGraphWrapper.__call__`",
             "with self.counter.capture(graph)", "graph"),
        Pair("where the inputs lay", f"{_GRAPH} GraphRunner._capture",
             f"`{_CUDA_GRAPH}:282 in CUDAGraphWrapper.__call__`",
             "addresses = {name: address(", "input_addresses"),
        Pair("where they lie now", f"{_GRAPH} GraphRunner._check_addresses",
             f"`{_CUDA_GRAPH}:351 in CUDAGraphWrapper.__call__`",
             "if address(values[name]) != there", "input_addresses"),
        Pair("replay", f"{_GRAPH} GraphRunner.__call__",
             f"`{_CUDA_GRAPH}:360 in CUDAGraphWrapper.__call__`",
             "self.counter.replay(entry.graph)", "replay"),
        Pair("memory of all graphs", f"{_GRAPH} GraphPool",
             f"`{_CUDA_GRAPH}:200 in CUDAGraphWrapper.__init__`", None, "graph_pool"),
        Pair("cut at what stays outside", f"{_GRAPH} PiecewiseGraphRunner"),
        Pair("a graph for each piece", f"{_GRAPH} PiecewiseGraphRunner.__init__",
             f"{_BACKENDS} wrap_with_cudagraph_if_needed", "graph_runner(part, CUDAGraphMode.PIECEWISE"),
        Pair("what stays outside", f"{_PROGRAM} build_program",
             f"{_COMPILATION} CompilationConfig.set_splitting_ops_for_v1", "splitting = name in"),
        Pair("how a step ran", "mini_vllm/outputs.py CUDAGraphStat"),
    ),
    "cudagraph_runner": (
        Pair("tokens of a decode, with drafts", f"{_FORWARD} uniform_decode_query_len",
             f"`{_THEIR_RUNNER}:805 in GPUModelRunner.__init__`", None, "uniform_decode_query_len"),
        Pair("mode and padded size", f"{_FORWARD} StepDispatcher.dispatch",
             f"{_THEIR_RUNNER} GPUModelRunner._determine_batch_execution_and_padding",
             "mode, descriptor = self.dispatcher.dispatch("),
        Pair("slots of padding: -1", f"{_FORWARD} NumpyGraphForward.run",
             f"`{_THEIR_RUNNER}:3919 in GPUModelRunner._get_slot_mappings`",
             'b["slot_mapping"][num_tokens:padded]', "slot_mapping"),
        Pair("requests of padding: no rows", f"{_FORWARD} NumpyGraphForward.run",
             f"`{_THEIR_RUNNER}:1981 in GPUModelRunner._prepare_inputs`",
             'b["query_start_loc"][num_reqs + 1 : reqs + 1]', "query_start_loc"),
        Pair("of length 0", f"{_FORWARD} NumpyGraphForward.run",
             f"`{_THEIR_RUNNER}:2091 in GPUModelRunner._prepare_inputs`",
             'b["seq_lens"][num_reqs:reqs]', "seq_lens"),
        Pair("in the null block", f"{_FORWARD} NumpyGraphForward.run",
             f"`{_THEIR_RUNNER}:2238 in GPUModelRunner._build_attention_metadata`",
             'b["block_table"][num_reqs:reqs]', "NULL_BLOCK_ID"),
        Pair("capture at the start", f"{_FORWARD} NumpyGraphForward.capture_model"),
        Pair("capturing closed", f"{_FORWARD} NumpyGraphForward.capture_model",
             f"`{_THEIR_RUNNER}:6443 in GPUModelRunner.capture_model`",
             "self.counter.capturing_enabled = False", "set_cudagraph_capturing_enabled"),
        Pair("rows for the logits", "mini_vllm/worker/forward.py NumpyForward.compute_logits",
             f"`{_THEIR_RUNNER}:4266 in GPUModelRunner.execute_model`",
             "self.model.compute_logits(hidden_states[rows])", "logits_indices"),
    ),
    "cudagraph_torch": (
        Pair("real graphs", f"{_TORCH} CUDAGraphWrapper"),
        Pair("an output that keeps no memory", "mini_vllm/gpu/weak_ref.py weak_ref_tensors"),
        Pair("what the wrappers are told", f"{_TORCH} ForwardContext"),
        Pair("warm up, then capture", f"{_TORCH} GraphedLlama.capture"),
        Pair("a step of no request", f"{_TORCH} TorchGraphForward._dummy_args"),
    ),
}
# fmt: on
