"""The pairs of phase 06: what a layer asks, which method, the layouts, the products, the grid, the cache.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_BASE, _CONFIG = "mini_vllm/layers/quantization/base.py", "mini_vllm/layers/quantization/config.py"
_METHODS = "mini_vllm/layers/quantization/linear.py"
_SCALED = "mini_vllm/layers/quantization/scaled.py"
_CACHE = "mini_vllm/layers/quantization/kv_cache.py"
_LINEAR = "vllm/model_executor/layers/linear.py"
_LAYERS = "vllm/model_executor/layers/quantization"
_TENSORS = f"{_LAYERS}/compressed_tensors/compressed_tensors.py"
_SCHEMES = f"{_LAYERS}/compressed_tensors/schemes"

# fmt: off
QUANTIZATION: dict[str, tuple[Pair, ...]] = {
    "quantization_methods": (
        Pair("a layer asks for its method", "mini_vllm/layers/linear.py Linear.__init__",
             f"`{_LINEAR}:274 in LinearBase.__init__`",
             "choose_linear_method(quant_config", "get_quant_method"),
        Pair("what a method is", f"{_BASE} LinearMethod"),
        Pair("its tensors", f"{_BASE} LinearMethod.create_weights"),
        Pair("when they are loaded", f"{_BASE} LinearMethod.process_weights_after_loading",
             f"{_LAYERS}/base_config.py QuantizeMethodBase.process_weights_after_loading"),
        Pair("the product", f"{_BASE} LinearMethod.apply"),
        Pair("a tensor, and its axes", f"{_BASE} Parameter"),
        Pair("nothing quantised", f"{_BASE} UnquantizedLinearMethod"),
        Pair("q, k and v alike", f"{_BASE} choose_linear_method"),
    ),
    "quantization_config": (
        Pair("the registry", "mini_vllm/layers/quantization/__init__.py get_quantization_config"),
        Pair("a config", f"{_BASE} QuantizationConfig"),
        Pair("AWQ", f"{_CONFIG} AWQConfig.from_config", f"{_LAYERS}/awq.py AWQConfig.from_config"),
        Pair("GPTQ", f"{_CONFIG} GPTQConfig.from_config",
             f"{_LAYERS}/auto_gptq.py AutoGPTQConfig.from_config"),
        Pair("one group, no order", f"{_CONFIG} GPTQConfig.from_config",
             f"`{_LAYERS}/auto_gptq.py:116 in AutoGPTQConfig.__init__`",
             "desc_act and size != -1", "desc_act"),
        Pair("compressed-tensors", f"{_CONFIG} CompressedTensorsConfig.from_config",
             f"{_TENSORS} CompressedTensorsConfig.from_config"),
        Pair("which target fits", f"{_CONFIG} CompressedTensorsConfig._find"),
        Pair("bits and activations give a method", f"{_CONFIG} _scheme",
             f"{_TENSORS} CompressedTensorsConfig._get_scheme_from_parts"),
        Pair("quantised while it is loaded", f"{_CONFIG} OnlineQuantizationConfig"),
    ),
    "quantization_layouts": (
        Pair("words, scales, zero points", f"{_METHODS} WNA16LinearMethod.create_weights",
             f"{_SCHEMES}/compressed_tensors_wNa16.py CompressedTensorsWNA16.create_weights"),
        Pair("AWQ: along the outputs", f"{_METHODS} AWQLinearMethod.create_weights",
             f"{_LAYERS}/awq.py AWQLinearMethod.create_weights"),
        Pair("in its own order", "mini_vllm/layers/quantization/pack.py unpack_awq"),
        Pair("GPTQ: transposed, along the inputs", f"{_METHODS} GPTQLinearMethod.create_weights",
             f"{_LAYERS}/auto_gptq.py AutoGPTQLinearMethod.create_weights"),
        Pair("columns sorted by group", f"{_METHODS} WNA16LinearMethod.apply_act_order"),
        Pair("codes out of words", f"{_METHODS} unpack_numbers"),
    ),
    "quantization_products": (
        Pair("weights alone", f"{_METHODS} WNA16LinearMethod.apply",
             f"{_SCHEMES}/compressed_tensors_wNa16.py CompressedTensorsWNA16.apply_weights"),
        Pair("int8 by int8", f"{_SCALED} W8A8Int8LinearMethod.apply",
             f"{_SCHEMES}/compressed_tensors_w8a8_int8.py CompressedTensorsW8A8Int8.apply_weights"),
        Pair("a scale a row of activations", f"{_SCALED} quantize_per_token_int8"),
        Pair("FP8 by FP8", f"{_SCALED} Fp8LinearMethod.apply",
             f"{_SCHEMES}/compressed_tensors_w8a8_fp8.py CompressedTensorsW8A8Fp8.apply_weights"),
        Pair("activations in FP8", f"{_SCALED} quantize_per_token_fp8"),
    ),
    "quantization_cache": (
        Pair("a file that asks for it", f"{_CONFIG} _kv_cache_dtype",
             "`vllm/model_executor/layers/attention/attention.py:238 in Attention.__init__`",
             'return "fp8"', "kv_cache_scheme"),
        Pair("one scale a layer", f"{_CACHE} PerTensor"),
        Pair("one for each token and head", f"{_CACHE} PerTokenHead"),
        Pair("bytes of a block", f"{_CACHE} page_size_bytes"),
    ),
}
# fmt: on
