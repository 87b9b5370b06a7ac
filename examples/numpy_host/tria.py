"""A thin ctypes binding of what a host that owns its tensors needs: model, accumulator, calibration, plan,
sequence. Structs mirror include/tria/*.h field by field; the library fills in their defaults and refuses a
struct_size it does not know, so a binding that falls behind fails loudly."""

import ctypes as C
import os

import numpy as np

DTYPES = {np.dtype("f4"): 0, np.dtype("f2"): 1}
MODES = ["per-layer-per-head", "per-head", "per-layer", "union", "global"]
ERROR_MESSAGE_SIZE = 512


class TriaError(Exception):
    pass


class Error(C.Structure):
    _fields_ = [("code", C.c_int32), ("message", C.c_char * ERROR_MESSAGE_SIZE)]


class LayerParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("n_q_heads", C.c_int32), ("n_kv_heads", C.c_int32),
                ("head_dim", C.c_int32), ("rotary_dim", C.c_int32), ("rotary_offset", C.c_int32),
                ("rope_style", C.c_int32), ("kv_source", C.c_int32), ("window", C.c_int32),
                ("rope_theta", C.c_double), ("inv_freq", C.c_void_p), ("freq_scale_sq", C.c_void_p)]


class ModelParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("name", C.c_char_p), ("layers", C.POINTER(LayerParams)),
                ("n_layers", C.c_int32), ("reserved", C.c_int32), ("fingerprint", C.c_char_p)]


class AccumulatorParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("model", C.c_void_p), ("capture_point", C.c_int32),
                ("content", C.c_int32), ("progress", C.c_void_p), ("progress_context", C.c_void_p)]


class Queries(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("layer", C.c_int32), ("dtype", C.c_int32), ("data", C.c_void_p),
                ("n_tokens", C.c_int64), ("token_stride", C.c_int64), ("head_stride", C.c_int64),
                ("dim_stride", C.c_int64), ("head_first", C.c_int32), ("n_heads", C.c_int32),
                ("positions", C.c_void_p)]


class Tensor(C.Structure):
    _fields_ = [("base", C.c_void_p), ("offset", C.c_uint64), ("size", C.c_uint64), ("page_stride", C.c_int64),
                ("token_stride", C.c_int64), ("head_stride", C.c_int64), ("dim_stride", C.c_int64),
                ("pack", C.c_int32), ("dtype", C.c_int32), ("dim", C.c_int32), ("scale_kind", C.c_int32),
                ("scale", C.c_float), ("reserved", C.c_int32), ("scales", C.c_void_p),
                ("scales_offset", C.c_uint64), ("scale_page_stride", C.c_int64),
                ("scale_token_stride", C.c_int64), ("scale_head_stride", C.c_int64)]


class LayerView(C.Structure):
    _fields_ = [("k", Tensor), ("v", Tensor), ("page_table", C.c_void_p), ("n_pages", C.c_int32),
                ("reserved", C.c_int32)]


class KvView(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("layers", C.POINTER(LayerView)), ("n_layers", C.c_int32),
                ("k_state", C.c_int32), ("page_table", C.c_void_p), ("n_pages", C.c_int32),
                ("tokens_per_page", C.c_int32), ("hadamard_signs", C.c_void_p), ("hadamard_size", C.c_int32),
                ("reserved", C.c_int32)]


class PlanParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("model", C.c_void_p), ("calibration", C.c_void_p),
                ("layout", C.POINTER(KvView)), ("layers", C.c_void_p), ("n_layers", C.c_int32),
                ("kv_head_first", C.c_int32), ("kv_head_count", C.c_int32), ("offsets", C.c_int32),
                ("offset_max", C.c_int32), ("disable_trig", C.c_int32), ("disable_norm_excess", C.c_int32),
                ("content_weight", C.c_float), ("normalize_over", C.c_int32), ("group", C.c_int32),
                ("mode", C.c_int32), ("layers_agg", C.c_int32), ("use_layer_budgets", C.c_int32),
                ("pool_radius", C.c_int32), ("layer_weights", C.c_void_p), ("budget", C.c_int32),
                ("n_sink", C.c_int32), ("n_recent", C.c_int32), ("protect_prefill", C.c_int32),
                ("count_prompt", C.c_int32), ("order", C.c_int32), ("zero_tail", C.c_int32),
                ("max_rows", C.c_int32), ("max_sequences", C.c_int32), ("score_device", C.c_void_p),
                ("select_device", C.c_void_p), ("compact_device", C.c_void_p),
                ("stage_device_memory", C.c_int32), ("n_threads", C.c_int32), ("parallel_for", C.c_void_p),
                ("parallel_context", C.c_void_p), ("all_reduce", C.c_void_p), ("all_reduce_context", C.c_void_p)]


class PolicyParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("capacity", C.c_int32), ("tokens_per_page", C.c_int32),
                ("kv_bytes", C.c_int64), ("bytes_per_row", C.c_int64), ("budget_percent", C.c_double),
                ("budget", C.c_int32), ("largest_budget", C.c_int32), ("interval", C.c_int32),
                ("n_recent", C.c_int32), ("n_sink", C.c_int32), ("in_flight", C.c_int32),
                ("protect_prefill", C.c_int32), ("count_prompt", C.c_int32),
                ("allow_prefill_compaction", C.c_int32), ("mode", C.c_int32), ("order", C.c_int32),
                ("in_place", C.c_int32), ("row_bucket", C.c_int32), ("enabled", C.c_int32),
                ("n_ramp", C.c_int32), ("reserved", C.c_int32), ("ramp", C.c_void_p), ("calibration", C.c_void_p),
                ("own_keep_sets", C.c_int32), ("n_layers", C.c_int32), ("n_kv_heads", C.c_int32),
                ("reserved2", C.c_int32), ("kv_heads", C.c_void_p), ("plan", C.c_void_p)]


class CompactParams(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("kv", C.POINTER(KvView)), ("pins", C.c_void_p),
                ("n_pins", C.c_int32), ("reserved", C.c_int32), ("terms", C.c_void_p), ("device", C.c_void_p),
                ("stream", C.c_void_p), ("compaction", C.c_void_p)]


def _load():
    name = os.environ.get("TRIA_LIBRARY", "libtria.so.0")
    try:
        lib = C.CDLL(name)
    except OSError as why:
        raise SystemExit(f"numpy_host: cannot load {name}: {why}; set TRIA_LIBRARY to libtria.so") from None
    for function in ("tria_sequence_positions",):
        getattr(lib, function).restype = C.POINTER(C.c_int32)
    return lib


lib = _load()


def check(function, *arguments):
    """Calls a function whose last parameter is a tria_error."""
    error = Error()
    if function(*arguments, C.byref(error)) != 0:
        raise TriaError(error.message.decode())


def sized(structure, init):
    """A struct with its defaults. `init` is the library's init function for it."""
    value = structure()
    init(C.byref(value))
    if value.struct_size != C.sizeof(structure):
        raise TriaError(f"{structure.__name__} is {C.sizeof(structure)} bytes here, {value.struct_size} in the library")
    return value


class Handle:
    """Owns one of the library's handles."""

    def __init__(self, destroy):
        self.pointer = C.c_void_p()
        self._destroy = destroy

    def __del__(self):
        if self.pointer:
            self._destroy(self.pointer)


class Model(Handle):
    def __init__(self, name, n_layers, n_q_heads, n_kv_heads, head_dim, inv_freq, interleaved):
        super().__init__(lib.tria_model_destroy)
        inv_freq = np.ascontiguousarray(inv_freq, "f8")
        layers = (LayerParams * n_layers)()
        for layer in layers:
            lib.tria_layer_params_init(C.byref(layer))
            layer.n_q_heads, layer.n_kv_heads, layer.head_dim = n_q_heads, n_kv_heads, head_dim
            layer.rope_style = int(interleaved)
            layer.inv_freq = inv_freq.ctypes.data
        params = sized(ModelParams, lib.tria_model_params_init)
        params.name, params.layers, params.n_layers = name.encode(), layers, n_layers
        check(lib.tria_model_create, C.byref(params), None, C.byref(self.pointer))


class Calibration(Handle):
    def __init__(self):
        super().__init__(lib.tria_calibration_destroy)

    @classmethod
    def load(cls, path):
        calibration = cls()
        check(lib.tria_calibration_load, os.fsencode(path), None, C.byref(calibration.pointer))
        return calibration

    def save(self, path, file_format=5):
        check(lib.tria_calibration_save, self.pointer, file_format, 0, os.fsencode(path))


class Accumulator(Handle):
    def __init__(self, model):
        super().__init__(lib.tria_accumulator_destroy)
        params = sized(AccumulatorParams, lib.tria_accumulator_params_init)
        params.model = model.pointer
        check(lib.tria_accumulator_create, C.byref(params), None, C.byref(self.pointer))

    def add(self, layer, queries):
        """queries: [tokens, heads, head_dim] before RoPE."""
        block = sized(Queries, lib.tria_queries_init)
        block.layer, block.dtype, block.data = layer, DTYPES[queries.dtype], queries.ctypes.data
        block.n_tokens, block.token_stride = queries.shape[0], queries.strides[0]
        block.head_stride, block.dim_stride = queries.strides[1], queries.strides[2]
        check(lib.tria_accumulator_add, self.pointer, C.byref(block))

    def finish(self):
        calibration = Calibration()
        check(lib.tria_accumulator_finish, self.pointer, None, None, C.byref(calibration.pointer))
        return calibration


class View:
    """Keys and values [layer][head][row][dim], described where they lie."""

    def __init__(self, keys, values):
        self.arrays = keys, values
        self.layers = (LayerView * keys.shape[0])()
        for layer, view in enumerate(self.layers):
            for tensor, array in ((view.k, keys[layer]), (view.v, values[layer])):
                tensor.base, tensor.size = array.ctypes.data, array.nbytes
                tensor.dtype, tensor.dim = DTYPES[array.dtype], array.shape[2]
                tensor.head_stride, tensor.token_stride = array.strides[:2]
        self.struct = sized(KvView, lib.tria_kv_view_init)
        self.struct.layers, self.struct.n_layers = self.layers, keys.shape[0]


class Plan(Handle):
    """Settings shared with the sequence are given once, in `policy`."""

    def __init__(self, model, calibration, view, policy, pool_radius=0, threads=1):
        super().__init__(lib.tria_plan_destroy)
        params = sized(PlanParams, lib.tria_plan_params_init)
        check(lib.tria_policy_to_plan, C.byref(policy), C.byref(params))
        params.model, params.calibration = model.pointer, calibration.pointer
        params.layout, params.pool_radius, params.n_threads = C.pointer(view.struct), pool_radius, threads
        check(lib.tria_plan_create, C.byref(params), None, C.byref(self.pointer))


def make_policy(calibration, n_layers, n_kv_heads, capacity, **settings):
    policy = sized(PolicyParams, lib.tria_policy_params_init)
    policy.capacity, policy.calibration = capacity, calibration.pointer
    policy.n_layers, policy.n_kv_heads = n_layers, n_kv_heads
    for name, value in settings.items():
        setattr(policy, name, value)
    return policy


class Sequence(Handle):
    def __init__(self, policy):
        super().__init__(lib.tria_sequence_destroy)
        check(lib.tria_sequence_create, C.byref(policy), None, C.byref(self.pointer))

    def append(self, n):
        check(lib.tria_sequence_append, self.pointer, n)

    def begin_prefill(self, n):
        check(lib.tria_sequence_begin_prefill, self.pointer, n)

    def end_prefill(self):
        check(lib.tria_sequence_end_prefill, self.pointer)

    def should_compact(self):
        return lib.tria_sequence_should_compact(self.pointer) == 1

    def compact(self, plan, view):
        params = sized(CompactParams, lib.tria_compact_params_init)
        params.kv = C.pointer(view.struct)
        check(lib.tria_sequence_compact, self.pointer, plan.pointer, C.byref(params))

    def positions(self, layer, head):
        """RoPE positions of the rows of (layer, KV head), copied."""
        n = C.c_int32()
        table = lib.tria_sequence_positions(self.pointer, layer, head, C.byref(n))
        return np.ctypeslib.as_array(table, (n.value,)).copy()
