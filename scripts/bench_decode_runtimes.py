"""ONNX Runtime and OpenVINO as engines of `bench_decode.py`. Neither is imported before it is used."""

import torch

from bench_decode_cases import StepProblem
from bench_engines import Call, Engine, Rewound, Setup
from bench_runtimes import Graph, onnx_session, openvino_options


def _bound_call(
    graph: Graph, setup: Setup, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
) -> Call:
    """A call that reads and writes these very tensors; one that is an input and an output is changed in place."""
    import onnxruntime

    model = graph.model(inputs, {name: tuple(tensor.shape) for name, tensor in outputs.items()})
    session = onnx_session(model, setup)
    binding = session.io_binding()
    for bind, tensors in ((binding.bind_ortvalue_input, inputs), (binding.bind_ortvalue_output, outputs)):
        for name, tensor in tensors.items():
            bind(name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))
    output = outputs["output"]

    def call() -> torch.Tensor:
        session.run_with_iobinding(binding)
        return output

    return call


def _build_concatenated(problem: StepProblem, setup: Setup) -> Call:
    """The operator MultiHeadAttention: it writes past and new keys and values into memory of their own."""
    graph = Graph(problem)
    products = [graph.product("query", layer) for layer in ("W_q", "W_k", "W_v")]
    bias = graph.constant("bias", graph.stacked("bias"))
    context = graph.node(
        "MultiHeadAttention",
        [*products, bias, "", "", "past keys", "past values"],
        "context",
        "keys",
        "values",
        num_heads=problem.case.num_heads,
        domain="com.microsoft",
    )
    graph.mixed(context)
    past_keys, past_values = problem.past
    keys, values = problem.padded_past()
    inputs = {"query": problem.query, "past keys": past_keys, "past values": past_values}
    outputs = {"output": torch.empty_like(problem.query), "keys": keys, "values": values}
    return _bound_call(graph, setup, inputs, outputs)


def _build_in_place(problem: StepProblem, setup: Setup) -> Call:
    """The operator GroupQueryAttention, which appends in place where past and present are one memory."""
    graph, case = Graph(problem), problem.case
    weight = graph.constant("weight", graph.stacked("weight").T)
    bias = graph.constant("bias", graph.stacked("bias"))
    stacked = graph.node("Add", [graph.node("MatMul", ["query", weight], "product"), bias], "stacked")
    context = graph.node(
        "GroupQueryAttention",
        [stacked, "", "", "past keys", "past values", "last", "total"],
        "context",
        "keys",
        "values",
        num_heads=case.num_heads,
        kv_num_heads=case.num_heads,
        domain="com.microsoft",
    )
    graph.mixed(context)
    keys, values = problem.padded_past()
    inputs = {
        "query": problem.query,
        "past keys": keys,
        "past values": values,
        "last": torch.full((case.batch,), case.key_len - 1, dtype=torch.int32),
        "total": torch.tensor([case.key_len], dtype=torch.int32),
    }
    outputs = {"output": torch.empty_like(problem.query), "keys": keys, "values": values}
    return _bound_call(graph, setup, inputs, outputs)


def _openvino_model(problem: StepProblem):
    """The step in the form that OpenVINO fuses: keys and values are states, reordered by `sources` before they grow."""
    import numpy
    import openvino
    from openvino import opset13 as ops
    from openvino.op.util import Variable, VariableInfo

    case = problem.case
    d_k = case.d_model // case.num_heads
    weights = {name: tensor.float().numpy() for name, tensor in problem.module.state_dict().items()}
    x = ops.parameter([-1, -1, case.d_model], numpy.float32)
    sources = ops.parameter([-1], numpy.int32)
    batch = ops.gather(ops.shape_of(x, "i32"), ops.constant([0]), ops.constant(0))
    sizes = ops.constant(numpy.array([case.num_heads, 0, d_k], numpy.int32))
    empty = ops.broadcast(ops.constant(numpy.float32(0)), ops.concat([batch, sizes], 0))
    swapped = ops.constant([0, 2, 1, 3])
    assigned = []

    def linear(rows, layer: str):
        product = ops.matmul(rows, ops.constant(weights[f"{layer}.weight"]), False, True)
        return ops.add(product, ops.constant(weights[f"{layer}.bias"]))

    def heads(layer: str):
        split = ops.reshape(linear(x, layer), ops.constant([0, 0, case.num_heads, d_k]), True)
        return ops.transpose(split, swapped)

    def appended(name: str, new):
        info = VariableInfo()
        info.data_shape = openvino.PartialShape([-1, case.num_heads, -1, d_k])
        info.data_type = openvino.Type.f32
        info.variable_id = name
        variable = Variable(info)
        past = ops.gather(ops.read_value(empty, variable), sources, ops.constant(0))
        assigned.append(ops.assign(ops.concat([past, new], 2), variable))
        return assigned[-1].input_value(0)

    keys, values = appended("keys", heads("W_k")), appended("values", heads("W_v"))
    context = ops.transpose(ops.scaled_dot_product_attention(heads("W_q"), keys, values), swapped)
    output = linear(ops.reshape(context, ops.constant([0, 0, case.d_model]), True), "W_o")
    return openvino.Model([ops.result(output)], assigned, [x, sources], "step")


# The state of OpenVINO can be set, but not cut: setting it copies all of it, and slows down some steps after. Therefore
# it grows, from so many positions below the length that is measured to as many above.
WINDOW = 16


def _build_openvino(problem: StepProblem, setup: Setup) -> Call:
    import numpy
    import openvino

    compiled = openvino.Core().compile_model(
        _openvino_model(problem), "CPU", openvino_options(problem, setup)
    )
    request = compiled.create_infer_request()
    request.set_input_tensor(0, openvino.Tensor(problem.query.float().numpy()))
    request.set_input_tensor(1, openvino.Tensor(numpy.arange(problem.case.batch, dtype=numpy.int32)))
    past = {name: tensor.float().numpy() for name, tensor in zip(("keys", "values"), problem.past)}
    length = problem.case.key_len - 1
    steps_left = 0

    def restore(positions: int) -> None:
        for state in request.query_state():
            state.state = openvino.Tensor(past[state.name][:, :, :positions].copy())

    def rewind() -> None:
        nonlocal steps_left
        if steps_left == 0:
            restore(max(1, length - WINDOW))
            steps_left = 2 * WINDOW
        steps_left -= 1

    def call() -> torch.Tensor:
        request.infer()
        return torch.from_numpy(request.get_output_tensor(0).data)

    restore(length)
    steps_left = 1  # the first call, whose result is compared, is the step at this very length
    return Rewound(call, rewind)


RUNTIMES = [
    Engine(
        "ONNXRuntime MHA",
        "a graph with its operator MultiHeadAttention (com.microsoft), past and present apart",
        _build_concatenated,
        packages=("onnxruntime", "onnx"),
        dtypes=("float32",),
        own_threads=True,
    ),
    Engine(
        "ONNXRuntime GQA",
        "a graph with its operator GroupQueryAttention (com.microsoft), which appends in place",
        _build_in_place,
        packages=("onnxruntime", "onnx"),
        dtypes=("float32",),
        own_threads=True,
    ),
    Engine(
        "OpenVINO state",
        "a stateful model; inputs and output are float32 at bfloat16 too",
        _build_openvino,
        packages=("openvino",),
        own_threads=True,
    ),
]
