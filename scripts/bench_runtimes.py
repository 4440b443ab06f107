"""ONNX Runtime and OpenVINO as engines of `bench_peers.py`. Neither is imported before it is used."""

import functools
import io
import warnings

import torch

from bench_cases import Problem
from bench_engines import Call, Engine, Setup, output_only

# The flash kernel behind ONNX Runtime's MultiHeadAttention takes no mask, and pays off from about this length.
_FLASH_LENGTH = 1024


class _OfInputs(torch.nn.Module):
    """A module whose arguments are distinct tensors: exporters take one tensor passed thrice for three inputs."""

    def __init__(self, module: torch.nn.Module, *, is_self: bool) -> None:
        super().__init__()
        self.module = module
        self.is_self = is_self

    def forward(self, query, *rest):
        memory, mask = (query, rest) if self.is_self else (rest[0], rest[1:])
        return self.module(query, memory, memory, *mask)


@functools.lru_cache(maxsize=1)  # for two engines, and all numbers of threads
def _exported_lesson(problem: Problem) -> tuple[bytes, dict[str, torch.Tensor]]:
    """The lesson as an ONNX file, and its inputs by name."""
    inputs = dict(zip(("query", "memory"), problem.inputs))
    if problem.mask_or_causal is not None:
        inputs["mask"] = problem.mask_or_causal
    inputs = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()
    }
    module = _OfInputs(output_only(problem).float(), is_self=len(problem.inputs) == 1).eval()
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # that there is a newer exporter, which needs more packages
        copies = tuple(tensor.clone() for tensor in inputs.values())
        torch.onnx.export(module, copies, file, dynamo=False, opset_version=17, input_names=list(inputs))
    return file.getvalue(), inputs


def onnx_session(model: bytes, setup: Setup):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = setup.keep_buffers
    options.log_severity_level = 3
    # Threads that spin after a call would take time from the engine whose turn is next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _session_call(model: bytes, inputs: dict[str, torch.Tensor], setup: Setup) -> Call:
    session = onnx_session(model, setup)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


def _build_onnx_runtime(problem: Problem, setup: Setup) -> Call:
    return _session_call(*_exported_lesson(problem), setup)


class Graph:
    """Nodes and weights of an ONNX model."""

    def __init__(self, problem: Problem) -> None:
        self.weights = {name: tensor.float() for name, tensor in problem.module.state_dict().items()}
        self.num_heads = problem.case.num_heads
        self.causal = int(problem.causal)
        self.nodes: list = []
        self.initializers: list = []

    def constant(self, name: str, tensor: torch.Tensor) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(tensor.contiguous().numpy(), name))
        return name

    def node(self, operator: str, inputs: list[str], *outputs: str, **attributes) -> str:
        """Returns the name of the first output."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs[0]

    def product(self, x: str, layer: str) -> str:
        """`x` times the layer's weight, without its bias."""
        return self.node(
            "MatMul", [x, self.constant(layer, self.weights[f"{layer}.weight"].T)], f"{layer} product"
        )

    def attend(self, operator: str, inputs: list[str]) -> str:
        attributes = {"num_heads": self.num_heads, "unidirectional": self.causal, "domain": "com.microsoft"}
        return self.node(operator, inputs, "context", **attributes)

    def stacked(self, name: str) -> torch.Tensor:
        return torch.cat([self.weights[f"{layer}.{name}"] for layer in ("W_q", "W_k", "W_v")])

    def mixed(self, context: str) -> str:
        """The last step: `context` through W_o."""
        bias = self.constant("output bias", self.weights["W_o.bias"])
        return self.node("Add", [self.product(context, "W_o"), bias], "output")

    def model(self, inputs: dict[str, torch.Tensor], outputs: dict[str, tuple[int, ...]]) -> bytes:
        """The file, with the shapes of the outputs."""
        from onnx import TensorProto, helper

        types = {torch.float32: TensorProto.FLOAT, torch.int32: TensorProto.INT32}
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "attention",
            [info(name, types[tensor.dtype], tuple(tensor.shape)) for name, tensor in inputs.items()],
            [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self.initializers,
        )
        operators = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=operators, ir_version=9).SerializeToString()


def _build_onnx_runtime_fused(problem: Problem, setup: Setup) -> Call:
    """One Attention operator, which projects too; MultiHeadAttention where that cannot be, or is faster."""
    graph, case = Graph(problem), problem.case
    inputs = {name: tensor.float() for name, tensor in zip(("query", "memory"), problem.inputs)}
    bias = ""
    if problem.mask is not None:
        bias = "attention_bias"
        added = torch.zeros(problem.mask.shape).masked_fill(~problem.mask, -1e9)
        inputs[bias] = added.reshape((1,) * (4 - added.dim()) + added.shape)
    stacked_bias = graph.constant("bias", graph.stacked("bias"))
    is_self = len(problem.inputs) == 1
    if is_self and (bias or problem.causal or case.key_len < _FLASH_LENGTH):
        weight = graph.constant("weight", graph.stacked("weight").T)
        context = graph.attend("Attention", ["query", weight, stacked_bias, "", "", bias])
    else:
        memory = "query" if is_self else "memory"
        products = [
            graph.product(x, layer) for x, layer in (("query", "W_q"), (memory, "W_k"), (memory, "W_v"))
        ]
        context = graph.attend("MultiHeadAttention", [*products, stacked_bias, "", bias])
    graph.mixed(context)
    model = graph.model(inputs, {"output": tuple(problem.query.shape)})
    return _session_call(model, inputs, setup)


def openvino_options(problem: Problem, setup: Setup) -> dict:
    precision = {"float32": "f32", "bfloat16": "bf16"}[problem.dtype]
    return {
        "INFERENCE_NUM_THREADS": setup.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the calling thread is PyTorch's too
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,  # else a cache is quantised to 8 bits
    }


def _build_openvino(problem: Problem, setup: Setup) -> Call:
    """The exported lesson, whose attention OpenVINO recognises and fuses. Inputs and output are float32."""
    import openvino

    model, inputs = _exported_lesson(problem)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model, b""), "CPU", openvino_options(problem, setup))
    tensors = {name: openvino.Tensor(tensor.numpy(), shared_memory=True) for name, tensor in inputs.items()}
    request = compiled.create_infer_request()

    def call() -> torch.Tensor:
        output = torch.from_numpy(
            request.infer(tensors, share_inputs=True, share_outputs=setup.keep_buffers)[0]
        )
        if not setup.keep_buffers:
            compiled.release_memory()
        return output

    return call


RUNTIMES = [
    Engine(
        "ONNXRuntime lesson",
        "the lesson, exported by torch.onnx",
        _build_onnx_runtime,
        packages=("onnxruntime", "onnx"),
        dtypes=("float32",),
        own_threads=True,
        holds_scores=True,
    ),
    Engine(
        "ONNXRuntime fused",
        "a graph with its operator Attention or MultiHeadAttention (com.microsoft)",
        _build_onnx_runtime_fused,
        packages=("onnxruntime", "onnx"),
        dtypes=("float32",),
        own_threads=True,
    ),
    Engine(
        "OpenVINO lesson",
        "the lesson, exported by torch.onnx; inputs and output are float32 at bfloat16 too",
        _build_openvino,
        packages=("openvino", "onnx"),
        own_threads=True,
    ),
]
