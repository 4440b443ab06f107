"""torch.compile for modules that hold objects of torch.classes.mha.

torch.compile passes such an object to its backend as an input of the graph, which Inductor, its default
backend, does not take; as a constant of the graph it does. So:

    torch.compile(model, backend=compile_backend.inductor, fullgraph=True)

Modules that call functions of torch.ops.mha on tensors alone need none of this.
"""

import copy

import torch
from torch._inductor.compile_fx import compile_fx


def inductor(graph, inputs):
    """Inductor, with the script objects among `inputs` as constants of the graph."""
    objects = {i: value for i, value in enumerate(inputs) if isinstance(value, torch.ScriptObject)}
    tensors = [i for i in range(len(inputs)) if i not in objects]
    bound = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    placeholders = bound.graph.find_nodes(op="placeholder")
    for i, value in objects.items():
        name = f"script_object_{i}"
        setattr(bound, name, value)
        with bound.graph.inserting_before(placeholders[i]):
            constant = bound.graph.create_node("get_attr", name)
        placeholders[i].replace_all_uses_with(constant)
        bound.graph.erase_node(placeholders[i])
    bound.recompile()
    compiled = compile_fx(bound, [inputs[i] for i in tensors])

    def call(*arguments):
        if any(arguments[i] is not value for i, value in objects.items()):
            return graph(*arguments)  # the module's object was replaced by another
        return compiled(*(arguments[i] for i in tensors))

    return call
