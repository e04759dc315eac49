"""`aot_export_module` and `aot_export_joint_simple`: one functional graph of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from aot import errors
from aot.analysis import analyze
from aot.analysis.metadata import InputAliasInfo, OutputType, view_and_mutation_metadata
from aot.backends.compilers import nop
from aot.cache.entry import CacheEntry
from aot.capture.cast_inputs import CastInputs
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.run import Traced, trace_function
from aot.frontends.function import Specialization
from aot.frontends.module import CompiledModule
from aot.graph.effect_tokens import thread_tokens
from aot.graph.purity import eliminate_dead_code
from aot.graph.value_meta import meta_of
from aot.guards.tracker import GuardTracker
from aot.ops.classify import call_on_clones
from aot.partition.default import default_partition
from aot.specialize.call import Arguments
from aot.tensors.symbolic_sizes import SymbolicSizes
from aot.torch_internals import pytree, tensor_impl


@dataclass(frozen=True, slots=True)
class BackwardSignature:
    """What the gradients of a joint graph are, by the names of its nodes.

    Attributes:
        gradients_to_parameters: a gradient -> the name of the parameter that it is of.
        gradients_to_user_inputs: a gradient -> the graph input that it is of.
        loss_output: the loss.

    Example:
        >>> _, signature = aot.aot_export_module(
        ...     torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)), [torch.ones(1, 2)],
        ...     trace_joint=True, output_loss_index=0)
        >>> sorted(signature.backward_signature.gradients_to_parameters.values())
        ['0.bias', '0.weight']
    """

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """What the inputs and outputs of an exported graph are.

    In AOTAutograd's order: it takes tokens, parameters, buffers and user inputs, and returns tokens, new
    values of inputs, user outputs and gradients.

    Attributes:
        parameters, buffers: their names in the module, in the order of the graph's inputs.
        user_inputs, user_outputs: the names of graph inputs and outputs (None for one that is no tensor).
        inputs_to_parameters, inputs_to_buffers: a graph input -> the name in the module.
        buffers_to_mutate, parameters_to_mutate: a graph output -> the name in the module of what gets it.
        user_inputs_to_mutate: a graph output -> the graph input that gets it.
        in_spec: the tree of the user inputs, ``(args, kwargs)``.
        out_spec: that of the user outputs.
        backward_signature: of a joint graph.
        input_tokens, output_tokens: the names of the first token and of the last, an input and an output,
            where operations act outside: `with_effects` orders them.

    Example:
        >>> _, signature = aot.aot_export_module(
        ...     torch.nn.BatchNorm1d(2), [torch.ones(3, 2)], trace_joint=False)
        >>> sorted(signature.buffers_to_mutate.values())
        ['num_batches_tracked', 'running_mean', 'running_var']
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    user_inputs: tuple[str, ...]
    user_outputs: tuple[str | None, ...]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()


# Takes the flat results of the program, and its inputs that require grad; returns tangents, which become
# graph inputs, and gradients.
_Differentiate = Callable[[list[Any], list[Tensor]], tuple[list[Tensor], Sequence[Tensor | None]]]


class _Exporter(CompiledModule):
    """Records a module, and its backward as a part of what it computes."""

    def __init__(
        self,
        module: nn.Module,
        decompositions: dict[Any, Callable[..., Any]] | None,
        differentiate: _Differentiate | None,
    ) -> None:
        table = decompositions or {}
        super().__init__(module, nop, nop, nop, default_partition, table, 0, False, False)
        self._differentiate = differentiate
        self.names = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specialization:
        """The graph of the module for such arguments."""
        self._inputs = [*(tensor for _, tensor in self.names), *pytree.tree_flatten((args, kwargs))[0]]
        with torch.set_grad_enabled(self._differentiate is not None):
            return self.prepare(args, kwargs)

    def _functional_call(
        self, module: nn.Module, state: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result, put = super()._functional_call(module, state, args, kwargs)
        if put:
            raise errors.ClosureMutation(
                f"{self.__name__} puts other tensors into the places of parameters or buffers; write to them "
                f"in place (`copy_`), so that the graph can return what they become"
            )
        results, self.out_spec = pytree.tree_flatten(result)
        tangents: list[Tensor] = []
        gradients: Sequence[Tensor | None] = ()
        if self._differentiate is not None:
            leaves = [*state, *pytree.tree_flatten((args, kwargs))[0]]
            wanted = {id(t): t for t in leaves if isinstance(t, Tensor) and t.requires_grad}
            tangents, gradients = self._differentiate(results, list(wanted.values()))
        self._tangents = len(tangents)
        return [r.detach() if isinstance(r, Tensor) else r for r in results], tangents, list(gradients)

    def _casting(self, arguments: Arguments, inference: bool) -> CastInputs:
        return CastInputs(arguments)  # An exported graph casts itself.

    def _trace_function(
        self,
        flat: Callable[[list[Any]], Any],
        casts: CastInputs,
        lifetimes: EscapeCheck,
        noted: GuardTracker,
        inference: bool,
        symbols: SymbolicSizes | None,
        slot: CacheEntry | None,
    ) -> Specialization:
        arguments = casts.arguments
        if arguments.metas:
            raise errors.UnsupportedArgument(
                f"{self.__name__} is given a {arguments.metas[0].kind.__name__}: an exported graph takes "
                f"plain tensors; pass what it is made of"
            )
        try:
            with noted.tracking_run(), self._recording_module():
                forward = trace_function(flat, arguments, self._decompositions, lifetimes, inference, False)
                metadata = view_and_mutation_metadata(forward, analyze(forward), False)
                graph = self._exported_graph(forward, arguments, metadata.input_info)
        finally:
            self._traced()
        noted.guards.check()
        forward.recorder.release_all()
        together = pytree.unflatten_function(forward.spec)
        return Specialization(graph, forward.spec, together, graph, (), "", metadata, noted.guards)

    def _exported_graph(
        self, forward: Traced, arguments: Arguments, infos: Sequence[InputAliasInfo]
    ) -> fx.GraphModule:
        """The graph of all inputs and outputs."""
        builder = forward.recorder.builder
        numbers = {id(tensor): i for i, tensor in enumerate(arguments.tensors)}
        inputs = [numbers.get(id(value)) for value in self._inputs]
        self._check_exportable(arguments, infos, inputs)
        self.mutated = [k for k, i in enumerate(inputs) if i is not None and infos[i].mutates_data]
        outputs = self._exported_outputs(forward, inputs)
        seeds = forward.outputs[self.out_spec.num_leaves :][: self._tangents]
        placeholders = [
            *self._exported_placeholders(forward, inputs),
            *_insert_exported_tangents(forward, seeds),
        ]
        anchor = builder.graph._root
        for node in placeholders:
            anchor.append(node)
            anchor = node
        builder.graph.output(tuple(outputs))
        eliminate_dead_code(builder.graph)
        _functional_batch_norm(builder.graph)
        for node in set(builder.graph.find_nodes(op="placeholder")).difference(placeholders):
            if node.users:
                raise errors.UnsupportedArgument(
                    f"{self.__name__} is given tensors that share memory, and reads all of it at once; pass "
                    f"clones"
                )
            builder.graph.erase_node(node)
        builder.annotate(builder.graph.nodes)
        for node in builder.graph.nodes:
            if any("partitioner_tag" in one.meta for one in node.all_input_nodes):
                node.meta["partitioner_tag"] = "is_backward"
                node.meta["segment"] = 0
        return fx.GraphModule(builder.root, builder.graph, "Exported")

    def _exported_outputs(self, forward: Traced, inputs: Sequence[int | None]) -> list[Any]:
        """What the graph returns."""
        count = self.out_spec.num_leaves
        written = [forward.entry.fakes[inputs[k] or 0] for k in self.mutated]
        outputs = [_read_exported_value(forward, value) for value in (*written, *forward.outputs[:count])]
        self.gradients: dict[int, int] = {}  # position of the input -> position of the output
        wanted = [i for i, wanted in enumerate(forward.entry.requires_grad) if wanted]
        for i, gradient in zip(wanted, forward.outputs[count + self._tangents :], strict=False):
            self.gradients[inputs.index(i)] = len(outputs)
            outputs.append(_read_exported_value(forward, gradient))
        return outputs

    def _exported_placeholders(self, forward: Traced, inputs: Sequence[int | None]) -> list[fx.Node]:
        """An input of the graph for each input, used or not."""
        builder = forward.recorder.builder
        made = {primal.tensor: primal.node for primal in forward.primals if primal.span is None}
        placeholders = []
        for k, (i, value) in enumerate(zip(inputs, self._inputs, strict=True)):
            node = None if i is None else made.pop(i, None)
            if node is None:  # a tensor once more, or no tensor
                node = builder.graph.placeholder(f"unused_{k + 1}")
                node.meta["val"] = value
                if i is not None:
                    builder.metas[node] = meta_of(forward.entry.fakes[i])
            placeholders.append(node)
        return placeholders

    def _check_exportable(
        self, arguments: Arguments, infos: Sequence[InputAliasInfo], inputs: Sequence[int | None]
    ) -> None:
        """Refuse what a graph of the inputs as they are cannot say."""
        names = [*(name for name, _ in self.names), *(f"user input {k}" for k in range(len(inputs)))]
        for k, i in enumerate(inputs):
            info = None if i is None else infos[i]
            if info is None or i is None:
                continue
            name = names[k]
            if info.mutates_metadata or info.mutates_storage_metadata or info.resizes_storage:
                raise errors.StorageMutation(
                    f"{name} gets other sizes, strides or another storage, or another standing with "
                    f"autograd, which an exported graph cannot return; return a new tensor instead"
                )
            if info.mutates_data and info.requires_grad:
                raise errors.AutogradStateMutation(
                    f"{name} requires grad and is written to, where the graph has gradients of what it is "
                    f"given; write to a clone"
                )
            tensor = arguments.tensors[i]
            if tensor.is_conj() or tensor.is_neg():
                raise errors.UnsupportedArgument(f"{name} is lazily conjugated or negated; clone it")
            shared = [
                j
                for j, other in enumerate(inputs)
                if j != k and other is not None and _shares_storage(tensor, arguments.tensors[other])
            ]
            if info.mutates_data and shared:
                raise errors.UnsupportedArgument(
                    f"{name} is written to and shares memory with {names[shared[0]]}, which an exported "
                    f"graph takes as another input; pass a clone"
                )


def _insert_exported_tangents(forward: Traced, seeds: Sequence[Any]) -> list[fx.Node]:
    """Inputs in place of what stood for them while the program was recorded."""
    builder = forward.recorder.builder
    tangents = []
    for k, seed in enumerate(seeds):
        computed = _read_exported_value(forward, seed)
        tangent = builder.placeholder(f"tangents_{k + 1}", meta_of(seed))
        tangent.meta["partitioner_tag"] = "is_backward"
        computed.replace_all_uses_with(tangent)
        tangents.append(tangent)
    return tangents


def _functional_batch_norm(graph: fx.Graph) -> None:
    """Write a batch norm that trains as ATen's, which returns the new statistics as well, last."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=call_on_clones):
        op, written, args, _ = node.args
        if op is aten.native_batch_norm.default and len(written) == 2:
            node.target = aten._native_batch_norm_legit_functional.default
            node.args = tuple(args)


def _shares_storage(one: Tensor, other: Tensor) -> bool:
    return tensor_impl.storage_key(one) == tensor_impl.storage_key(other)


def _read_exported_value(forward: Traced, value: Any) -> Any:
    """What `value` shows when the program ends, as a node of the graph."""
    if not isinstance(value, Tensor):
        return value
    recorder = forward.recorder
    node = recorder.read(value)
    if value.is_conj():
        node = recorder.builder.emit(torch.ops.aten._conj_physical.default, node)
    if value.is_neg():
        node = recorder.builder.emit(torch.ops.aten.neg.default, node)
    return node


def aot_export_module(
    mod: nn.Module,
    args: Sequence[Any],
    *,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: dict[str, Any] | None = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Record a module as one functional graph.

    The graph takes ``(*parameters, *buffers, *user_inputs)``, each leaf of the arguments being one, and
    returns ``(*new values of inputs that are written to, *user_outputs, *gradients)``. Where operations act
    outside, a token comes before all these, and another one goes out first. It is for such
    arguments alone: shapes, numbers and what the module reads besides are those of this run. Its nodes call
    ATen operations; one that writes and has no functional form is run on copies, by ``call_on_clones``.

    Args:
        mod: as for `aot_module`.
        args, kwargs: example arguments, tensors and numbers or containers of them.
        decompositions: operation -> function that computes it by others.
        trace_joint: whether the graph computes the gradients of a loss, with respect to every parameter and
            user input that requires grad; else it is recorded under ``no_grad``.
        output_loss_index: which leaf of the module's results is the loss, a tensor of one element.
        pre_dispatch, dynamic_shapes: only False.

    Raises:
        UnsupportedOption: an option has a value that is not supported, or says of no loss which it is.
        UnsupportedOutput: the loss is none, another result requires grad, or something has no gradient.
        Unsupported: see `aot.errors`.

    Example:
        >>> graph, signature = aot.aot_export_module(
        ...     torch.nn.Linear(2, 1), [torch.ones(3, 2)], trace_joint=False)
        >>> signature.parameters, len(signature.user_inputs)
        (('weight', 'bias'), 1)
    """
    if pre_dispatch or dynamic_shapes:
        raise errors.UnsupportedOption(
            "pre_dispatch=True, dynamic_shapes=True: graphs are recorded below autograd, for one shape each"
        )
    if trace_joint and output_loss_index is None:
        raise errors.UnsupportedOption(
            "trace_joint=True: output_loss_index has to say which result is the loss"
        )
    loss = output_loss_index or 0

    def differentiate(
        results: list[Any], wanted: list[Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        _check_exported_loss(results, loss)
        gradients = torch.autograd.grad(results[loss], wanted, allow_unused=True)
        if any(gradient is None for gradient in gradients):
            raise errors.UnsupportedOutput(
                "the loss does not depend on all parameters and inputs that require grad; call "
                "requires_grad_(False) on the others"
            )
        return [], gradients

    export = _Exporter(mod, decompositions, differentiate if trace_joint else None)
    graph = export.record(tuple(args), kwargs or {}).forward
    signature = _exported_signature(export, graph, (tuple(args), kwargs or {}), loss if trace_joint else None)
    tokens = thread_tokens(graph.graph, lifted=True)
    if tokens is not None:
        graph.recompile()
        signature = replace(signature, input_tokens=(tokens[0],), output_tokens=(tokens[1],))
    return graph, signature


def _check_exported_loss(results: Sequence[Any], loss: int) -> None:
    if not -len(results) <= loss < len(results) or not isinstance(results[loss], Tensor):
        raise errors.UnsupportedOutput(
            f"output_loss_index={loss} names no tensor among {len(results)} results"
        )
    if not results[loss].requires_grad or results[loss].numel() != 1:
        raise errors.UnsupportedOutput(
            f"the loss, result {loss}, is to require grad and to have one element, and not shape "
            f"{tuple(results[loss].shape)}"
        )
    for k, value in enumerate(results):
        if k != loss % len(results) and isinstance(value, Tensor) and value.requires_grad:
            raise errors.UnsupportedOutput(
                f"result {k} requires grad and is not the loss, of which alone gradients are computed; "
                f"detach it"
            )


def _exported_signature(
    export: _Exporter, graph: fx.GraphModule, given: Any, loss: int | None
) -> GraphSignature:
    inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    (output,) = graph.graph.find_nodes(op="output")
    outputs = [getattr(value, "name", None) for value in output.args[0]]
    parameters = [name for name, _ in export.module.named_parameters(remove_duplicate=False)]
    names = [name for name, _ in export.names]
    buffers = names[len(parameters) :]
    mutations = dict(zip(outputs, export.mutated, strict=False))
    user_outputs = outputs[len(mutations) : len(mutations) + export.out_spec.num_leaves]
    backward = None
    if loss is not None:
        gradients = {str(outputs[position]): k for k, position in export.gradients.items()}
        backward = BackwardSignature(
            {output: names[k] for output, k in gradients.items() if k < len(names)},
            {output: inputs[k] for output, k in gradients.items() if k >= len(names)},
            str(user_outputs[loss]),
        )
    return GraphSignature(
        parameters=tuple(parameters),
        buffers=tuple(buffers),
        user_inputs=tuple(inputs[len(names) :]),
        user_outputs=tuple(user_outputs),
        inputs_to_parameters=dict(zip(inputs, parameters, strict=False)),
        inputs_to_buffers=dict(zip(inputs[len(parameters) :], buffers, strict=False)),
        buffers_to_mutate={
            str(o): names[k] for o, k in mutations.items() if len(parameters) <= k < len(names)
        },
        parameters_to_mutate={str(o): names[k] for o, k in mutations.items() if k < len(parameters)},
        user_inputs_to_mutate={str(o): inputs[k] for o, k in mutations.items() if k >= len(names)},
        in_spec=pytree.tree_flatten(given)[1],
        out_spec=export.out_spec,
        backward_signature=backward,
    )


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> fx.GraphModule:
    """Record a function whose graph has its own inputs and outputs, on request with its backward.

    Args:
        func: of tensors and numbers; returns a tuple or list of them. It writes to no argument and returns no
            alias of one.
        args: example arguments.
        trace_joint: whether the graph has the backward: it then takes a tangent for each result that requires
            grad, after the arguments, and returns a gradient for each argument that does, after the results
            (None where none leads there). Partitioners take it.
        num_params_buffers: of no effect, as shapes are not symbolic.
        decompositions: operation -> function that computes it by others.

    Raises:
        UnsupportedArgument, UnsupportedOutput: arguments or results are nested.
        Unsupported: the function writes to an argument, or returns an alias; or see `aot.errors`.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> joint = aot.aot_export_joint_simple(lambda x: (x.sin(),), [x], trace_joint=True)
        >>> " ".join(node.name for node in joint.graph.find_nodes(op="placeholder"))
        'primals_1 tangents_1'
    """
    if any(isinstance(arg, (list, tuple, dict)) for arg in args):
        raise errors.UnsupportedArgument("an argument is a container; pass its elements as arguments")

    def differentiate(
        results: list[Any], wanted: list[Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        reached = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        tangents = [torch.empty_like(r) for r in reached]
        if not reached or not wanted:
            return tangents, [None] * len(wanted)
        return tangents, torch.autograd.grad(reached, wanted, tangents, allow_unused=True)

    export = _Exporter(_Function(func), decompositions, differentiate if trace_joint else None)
    recorded = export.record(tuple(args), {})
    if export.mutated:
        raise errors.UnsupportedArgument(
            f"the function writes to argument {export.mutated[0]}, so that its graph would have another "
            f"result; use aot_export_module"
        )
    nested = any(not child.is_leaf() for child in export.out_spec.children())
    if export.out_spec.is_leaf() or nested:
        raise errors.UnsupportedOutput("the function has to return a tuple or list of tensors and numbers")
    aliases = {OutputType.ALIAS_OF_INPUT, OutputType.IS_INPUT}
    for k, info in enumerate(recorded.metadata.output_info[: export.out_spec.num_leaves]):
        if info.output_type in aliases:
            raise errors.UnsupportedOutput(f"result {k} is an argument or a view of one; clone it")
    return recorded.forward
