"""Inductor as a compiler of graphs.

In: an `fx.GraphModule` of this compiler. Out: a boxed callable. Before Inductor gets a graph, it is traced
once more with Inductor's decompositions. That trace also changes what Inductor would compute otherwise than
eager:

- `workarounds`: finds nodes that need copies or must keep their layout.
- `opaque_calls`: calls that Inductor must not decompose.

Invariant: the callable's results have the strides of the graph, and it draws eager's random numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from aot import errors
from aot.backends.compilers import Compiled, static_inputs
from aot.backends.graph_names import get_aot_compilation_context
from aot.graph.effect_tokens import thread_tokens
from aot.graph.purity import is_random_node, node_has_external_effect
from aot.graph.symint_inputs import DATA_NUMBERS
from aot.inductor.opaque_calls import call_opaque, is_opaque
from aot.inductor.workarounds import (
    SCATTERS,
    does_layout_matter_to_inductor,
    insert_copies,
    multiply_alpha_first,
    writes_within,
)
from aot.ops.call_targets import call_with_grad, is_custom
from aot.ops.classify import BATCH_NORM, call_on_clones, is_written
from aot.tensors.symbolic_sizes import has_symbols, numbers_of, substitute, with_hints
from aot.torch_internals import (
    higher_order_ops,
    inductor_api,
    op_queries,
    pytree,
    symbolic_shapes,
    tensor_impl,
    torch_fakes,
)

# Settings of Inductor for stages that do not run here, or that would make results other than eager's. Each
# has the only value that it may have, and the reason.
_PASSES = "passes over joint graphs and before autograd are not run"
_FIXED: Mapping[str, tuple[Any, str]] = {
    "triton.cudagraphs": (False, "results of a CUDA graph are overwritten by its next run"),
    "fallback_random": (True, "random numbers are eager's"),
    "keep_output_stride": (True, "results lie in memory as in eager"),
    "bw_outputs_user_visible": (True, "gradients lie in memory as in eager"),
    "freezing": (False, "parameters are read at each call"),
    "cpp_wrapper": (False, "the wrapper of the kernels is Python"),
    "fx_wrapper": (False, "the wrapper of the kernels is Python"),
    "custom_partitioner_fn": (None, "the option 'partitioner' says how a graph is cut"),
    "joint_custom_pre_pass": (None, _PASSES),
    "joint_custom_post_pass": (None, _PASSES),
    "pre_grad_custom_pass": (None, _PASSES),
    "pre_grad_fusion_options": ({}, _PASSES),
    "selective_decompose": (False, "every operation that Inductor decomposes is decomposed"),
}

# Their result for uint8 is uint8, but Inductor computes booleans.
_JUDGES = {*op_queries.overloads(torch.ops.aten.any), *op_queries.overloads(torch.ops.aten.all)}
# Inductor's CPU kernels for these have an error that is small relative to 1, but not relative to small
# results (for `erfinv`, near -1 and 1): pytorch issues 198183, 198133 and 189803.
_CRUDE = {
    torch.ops.aten.atanh.default,
    torch.ops.aten.celu.default,
    torch.ops.aten.elu.default,
    torch.ops.aten.erf.default,
    torch.ops.aten.erfinv.default,
    torch.ops.aten.expm1.default,
    torch.ops.aten.selu.default,
}
_ZEROS = torch.ops.aten._efficientzerotensor.default
_UNIQUE = torch.ops.aten._unique.default
_PRODUCTS = {torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar, torch.ops.aten.linalg_cross.default}


@dataclass(frozen=True, slots=True)
class Inductor:
    """Inductor as a compiler of forward, backward and inference graphs.

    Attributes:
        settings: settings of Inductor's configuration that hold while it compiles.

    Example:
        >>> inductor = Inductor.configured()
        >>> compiled = aot.aot_function(
        ...     torch.sin, inductor.forward, inductor.backward, inference_compiler=inductor.inference)
    """

    settings: Mapping[str, Any]

    @classmethod
    def configured(
        cls, mode: str | None = None, options: Mapping[str, Any] | None = None, *, cuda: bool = True
    ) -> Inductor:
        """Inductor with the mode and options of `torch.compile`, and with eager's random numbers.

        Args:
            mode, options: as for `torch.compile`.
            cuda: a CUDA device may be used. Without one Inductor captures no CUDA graphs, although a mode
                (``"reduce-overhead"``, ``"max-autotune"``) asks for them.

        Raises:
            UnsupportedOption: Inductor does not know an option, or an option must have another value here
                (`_FIXED`).
        """
        try:
            settings = inductor_api.resolve_settings(mode, options)
        except RuntimeError as error:
            raise errors.UnsupportedOption(
                f"mode={mode!r}, options={dict(options or {})!r}: {error}"
            ) from error
        if not cuda:
            settings["triton.cudagraphs"] = False
        for name, (value, reason) in _FIXED.items():
            if settings.get(name, value) != value:
                raise errors.UnsupportedOption(
                    f"{name}={settings[name]!r}{f', of mode={mode!r}' if mode else ''}: it can only be "
                    f"{value!r} here, as {reason}; leave it out"
                )
        known = inductor_api.option_names()
        fixed = {name: value for name, (value, _) in _FIXED.items() if name in known}
        return cls({**settings, **fixed})  # `fixed` overrides what is set in the process

    def forward(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Compile the forward graph of a call that has a backward."""
        return self._compile(module, example_inputs, "forward")

    def backward(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Compile a backward graph; donated inputs may be overwritten."""
        return self._compile(module, example_inputs, "backward")

    def inference(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Compile the graph of a call without a backward, which may write to its inputs at its end."""
        return self._compile(module, example_inputs, "inference")

    def _compile(self, module: fx.GraphModule, example_inputs: Sequence[Any], which: str) -> Compiled:
        acts = {n.target for n in module.graph.nodes if node_has_external_effect(n)}
        with higher_order_ops.as_if_ordered(op for op in acts if isinstance(op, op_queries.OpOverload)):
            return self._compile_with_inductor(
                _inductor_graph_with_tokens(module) if acts else module, example_inputs, which
            )

    def _compile_with_inductor(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], which: str
    ) -> Compiled:
        _check_inductor_sizes(module)
        _check_inductor_floats(module, which)
        lowering = _Lowering(module)
        literals = [node.meta["val"] for node in lowering.literals.values()]
        inputs = [*example_inputs, *literals]
        if _has_loops(module):  # a loop's results may have a row for each iteration
            inputs = symbolic_shapes.unbacked_fakes_like(inputs)
        table = inductor_api.decomposition_table(self.settings)
        graph = inductor_api.decompose(lowering.function, inputs, table)
        if writes_within(graph.graph):  # a decomposition may write to its own tensors
            functional = torch.func.functionalize(graph, remove="mutations")
            graph = inductor_api.decompose(functional, inputs, table)
        (wanted,), (output,) = (m.graph.find_nodes(op="output") for m in (module, graph))
        draws = [node for node in graph.graph.nodes if is_random_node(node)]
        # Inductor removes draws that nobody reads, so each one is a result.
        output.args = ((*output.args[0], *_unread_draws(draws)),)
        results = output.args[0]
        # Inductor chooses the strides of results that are not listed here.
        output.meta["user_visible_output_idxs"] = [i for i, r in enumerate(results) if isinstance(r, fx.Node)]
        donated = module.meta.get("donated", ())
        graph.meta["donated"] = donated  # a part of the key in Inductor's cache, which ignores donated inputs
        settings = dict(self.settings)
        multiply_alpha_first(graph.graph)
        if insert_copies(graph.graph) or does_layout_matter_to_inductor(graph.graph):
            settings["pattern_matcher"] = False
        acts = sum(node.target is higher_order_ops.WITH_EFFECTS for node in graph.graph.nodes)
        if len(draws) > 1 or acts > 1:  # their order must stay
            settings |= {"reorder_for_locality": False, "reorder_for_peak_memory": False}
        called, _, _ = get_aot_compilation_context()
        static = [*static_inputs(module), *range(len(example_inputs), len(inputs))]  # and the constants
        opaque = [node.target for node in graph.graph.nodes if is_opaque(node.target)]
        compiled, strides = inductor_api.compile_graph(
            graph, inputs, which, settings, donated, static, called, opaque
        )
        # Inductor gives the strides for the call that was traced.
        wrong = {
            i: node.meta["val"].stride()
            for i, (node, given) in enumerate(zip(wanted.args[0], strides, strict=False))
            if isinstance(node, fx.Node) and given is not None and not _lies(node.meta["val"], given)
        }
        constants = [getattr(module, name) for name in lowering.literals]
        unread = len(results) - len(wanted.args[0])
        return _completed_inductor_call(compiled, module, example_inputs, constants, wrong, unread)


def _has_loops(module: fx.GraphModule) -> bool:
    graphs = (part.graph for part in module.modules() if isinstance(part, fx.GraphModule))
    loops = (higher_order_ops.WHILE_LOOP, higher_order_ops.WHILE_LOOP_STACK_OUTPUT)
    return any(node.target in loops for graph in graphs for node in graph.nodes)


def _check_inductor_sizes(module: fx.GraphModule) -> None:
    """Refuse `aten._unique` below torch 2.12, where it lacks the tag for data-dependent shapes.

    Inductor then takes the number of its results for one.
    """
    if torch.Tag.dynamic_output_shape not in _UNIQUE.tags and module.graph.find_nodes(
        op="call_function", target=_UNIQUE
    ):
        raise errors.UnsupportedOperation(
            f"{_UNIQUE} below Inductor, which before torch 2.12 takes it to have one result; use the backend "
            f"aotfuzz, or a later torch"
        )


def _check_inductor_floats(module: fx.GraphModule, which: str) -> None:
    """Refuse a forward that computes a float from values, because its backward may take it as an input.

    Inductor takes no float inputs.

    Raises:
        DataDependentValue: the graph computes such a float.
    """
    numbers = (one for node in module.graph.nodes for one in node.meta.get(DATA_NUMBERS, ()))
    if which == "forward" and any(isinstance(one.value, torch.SymFloat) for one in numbers):
        raise errors.DataDependentValue(
            "the function reads a tensor's value that is no integer (item), and a backward may need it, "
            "which Inductor cannot be given; compute with the tensor instead, or use the backend aotfuzz"
        )


def _inductor_graph_with_tokens(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph in which tokens order the external effects."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    thread_tokens(graph, lifted=False)
    made = fx.GraphModule(module, graph)
    made.meta = module.meta
    return made


class _Lowering(fx.Interpreter):
    """Runs a graph under a tracer, which records the graph that Inductor gets.

    Attributes:
        literals: the graph's tensor constants by name. They are inputs of the recorded graph, after the
            others.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._graph = module.graph
        attributes = module.graph.find_nodes(op="get_attr")
        self.literals = {str(node.target): node for node in attributes if "val" in node.meta}
        self._zeros = _zeros_without_memory(module.graph)
        self._numbers: dict[Any, Any] = {}  # the inputs that are numbers, by their symbols
        self._given: dict[str, Any] = {}
        self._drawn: list[torch.Tensor] = []

    def function(self, *arguments: Any) -> Any:
        """The graph as a function of its inputs and its constants."""
        count = len(self._graph.find_nodes(op="placeholder"))
        self._given = dict(zip(self.literals, arguments[count:], strict=True))
        self._drawn = []
        return self.run(*arguments[:count])

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        function = getattr(self.module, target)
        if isinstance(function, fx.GraphModule):  # an inner graph has no literals of its own
            return _Lowering(function).function
        return self._given[target]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is call_on_clones and args[0] in BATCH_NORM:
            return _batch_norm(*args)
        if target is call_on_clones and is_custom(args[0]):
            return _lowered_custom_operator(*args)
        return super().call_function(target, args, kwargs)

    def run_node(self, node: fx.Node) -> Any:
        """Run a node, and give its result the strides that it has in the graph, because views depend on them.

        A node that Inductor would compute otherwise than eager becomes an opaque call.
        """
        known = node.meta.get("val")
        if DATA_NUMBERS in node.meta:
            return self._run_with_data_sizes(node, known)
        if node.op == "placeholder" and isinstance(known, torch.SymInt):
            self._numbers[symbolic_shapes.original_expression(known)] = value = super().run_node(node)
            return value
        # Inductor computes some draws otherwise than eager, and reads too early what others draw into. It
        # runs independent operations in any order, so each draw depends on the draw before.
        if is_random_node(node):
            result = self._whole(node, after=self._drawn)
            values, _ = pytree.tree_flatten(result)
            self._drawn = [value for value in values if isinstance(value, torch.Tensor)][:1]
            return result
        if node.target is call_with_grad or _is_empty_complex(node) or _is_complex_scatter(node):
            return self._whole(node)
        # Decompositions of operations with `out=` do not accept it.
        if _mutates_keyword_argument(node):
            return self._whole(node)
        # Here the sizes are known, because everything that the operation reads is known.
        if (
            isinstance(node.target, op_queries.OpOverload)
            and torch.Tag.dynamic_output_shape in node.target.tags
        ):
            return self._whole(node)
        if node.target in _CRUDE and isinstance(known, torch.Tensor) and known.device.type == "cpu":
            return self._whole(node)
        if node in self._zeros and isinstance(known, torch.Tensor):
            return _restore_known_strides(
                torch.zeros(known.shape, dtype=known.dtype, device=known.device), known
            )
        if node.target in _JUDGES and isinstance(known, torch.Tensor) and known.dtype == torch.uint8:
            (judged, *how), named = self.fetch_args_kwargs_from_env(node)
            return self.call_function(node.target, (judged.bool(), *how), named).to(torch.uint8)
        try:
            result = super().run_node(node)
        # Some decompositions divide by the number of elements, or read an index from a tensor.
        except (ArithmeticError, torch_fakes.DataDependentOutputException):
            return self._whole(node)
        return _restore_known_strides(result, known) if node.op == "call_function" else result

    def _run_with_data_sizes(self, node: fx.Node, known: Any) -> Any:
        """Run an operation whose result has data-dependent sizes, and equate Inductor's symbols with ours."""
        result = super().run_node(node)
        for one, other in zip(*(pytree.tree_flatten(value)[0] for value in (result, known)), strict=True):
            for size, wanted in zip(*(numbers_of(value) for value in (one, other)), strict=True):
                if isinstance(wanted, torch.SymInt):
                    wanted = self._numbers.get(symbolic_shapes.original_expression(wanted), size)
                if isinstance(size, torch.SymInt):
                    symbolic_shapes.assume_equal(size, wanted)
        return result

    def _whole(self, node: fx.Node, after: Sequence[torch.Tensor] = ()) -> Any:
        assert callable(node.target)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return call_opaque(node.target, args, kwargs, node.meta["val"], after)


def _is_empty_complex(node: fx.Node) -> bool:
    """Whether a node computes a complex tensor without elements.

    Inductor views complex tensors as real ones, for which they must be dense. A tensor without elements need
    not be dense.
    """
    known = node.meta.get("val")
    return (
        isinstance(known, torch.Tensor)
        and known.is_complex()
        and any(isinstance(n, int) and n == 0 for n in known.shape)
        and isinstance(node.target, op_queries.OpOverload)
        and all(returned.alias_info is None for returned in node.target._schema.returns)
    )


def _is_complex_scatter(node: fx.Node) -> bool:
    """Whether a node scatters complex numbers into a copy.

    Inductor lets ATen write to a view of the copy, and does not know of the write. So it reads another view
    of the copy too early.
    """
    known = node.meta.get("val")
    return node.target in SCATTERS and isinstance(known, torch.Tensor) and known.is_complex()


def _mutates_keyword_argument(node: fx.Node) -> bool:
    """Whether a node calls an operation that writes to keyword arguments."""
    written = node.args[1] if node.target is call_on_clones else ()
    return isinstance(written, (tuple, list)) and any(isinstance(name, str) for name in written)


def _batch_norm(op: Any, written: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...]:
    """The results of a batch norm in training mode, and the new running statistics."""
    *results, mean, variance = torch.ops.aten._native_batch_norm_legit_functional(*args)
    if len(op._schema.returns) > len(results):
        results.append(args[0].new_zeros((0,), dtype=torch.uint8))  # cuDNN's reserve for its backward
    return (*results, mean, variance)


def _lowered_custom_operator(
    op: Any, written: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of a custom operator that writes to its arguments, and the new values of these.

    Raises:
        UnsupportedOperation: the operator returns an alias of an argument, or gets a list with None in it.
    """
    if any(returned.alias_info is not None for returned in op._schema.returns):
        raise errors.UnsupportedOperation(
            f"{op} returns what it writes to, which Inductor does not take; let it return nothing, or use "
            f"the backend aotfuzz"
        )
    if any(isinstance(value, (list, tuple)) and None in value for value in (*args, *kwargs.values())):
        raise errors.UnsupportedOperation(
            f"{op} is given a list with None in it, which Inductor does not take where something is written; "
            f"leave it out, or use the backend aotfuzz"
        )
    names = [argument.name for argument in op._schema.arguments]
    results = higher_order_ops.call_auto_functionalized(
        op, {**dict(zip(names, args, strict=False)), **kwargs}
    )
    count = sum(map(is_written, op._schema.arguments))
    returned, left = results[: len(results) - count], results[len(results) - count :]
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in left)
    changed = tuple(value for some in lists for value in some if value is not None)
    return (*(returned if op._schema.returns else ()), *changed)


def _zeros_without_memory(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose value is a zero tensor without memory (`torch._efficientzerotensor`) in ATen.

    These are views of a zero tensor, and products with one for any factor, also NaN. Derivatives of `sgn` and
    others begin with a zero tensor. Inductor treats it like any other tensor. The rules here are those of
    ATen's operations.
    """
    zeros: set[fx.Node] = set()
    for node in graph.nodes:
        op = node.target
        if not isinstance(op, op_queries.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        given = zeros.intersection(node.all_input_nodes)
        quotient = op is torch.ops.aten.div.Tensor and len(given) == 1
        if (
            op is _ZEROS
            or (given and op in _PRODUCTS)
            or (given and node.args[0] in given and (op.is_view or quotient))
        ):
            zeros.add(node)
    return zeros


def _restore_known_strides(result: Any, known: Any) -> Any:
    """A result, or a tuple of results, with the strides of the recorded ones."""
    if isinstance(known, (tuple, list)) and isinstance(result, (tuple, list)):
        return tuple(_restore_known_strides(*pair) for pair in zip(result, known, strict=True))
    if not isinstance(known, torch.Tensor) or not isinstance(result, torch.Tensor):
        return result
    if _lies(result, known.stride()):
        return result
    if result.is_complex():  # Inductor would restride it by a copy without gaps
        return call_opaque(_laid_out, [result, list(known.stride())], {}, known)
    return inductor_api.restride(result, known.stride())


class _LaidOut:
    """Copies a tensor to other strides, also with gaps. Its `repr` is part of a key in Inductor's cache."""

    def __call__(self, value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
        copy = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
        return copy.copy_(value)

    def __repr__(self) -> str:
        return "laid out"


_laid_out = _LaidOut()


def _lies(value: Any, stride: Sequence[int]) -> bool:
    """Whether a tensor has these strides, apart from those that mean nothing (size 1, or no elements)."""
    shape, strides, others = with_hints((tuple(value.shape), value.stride(), tuple(stride)))
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, others, strict=True))


def _unread_draws(draws: Sequence[fx.Node]) -> list[fx.Node]:
    """One result of each draw that nobody reads."""
    values = []
    for node in draws:
        if not node.users:
            known = node.meta["val"]
            if isinstance(known, (tuple, list)):
                with node.graph.inserting_after(node):
                    node = node.graph.call_function(operator.getitem, (node, 0))
                node.meta["val"] = known[0]
            values.append(node)
    return values


def _completed_inductor_call(
    compiled: Compiled,
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    constants: Sequence[torch.Tensor],
    wrong: Mapping[int, tuple[Any, ...]],
    unread: int,
) -> Compiled:
    """Wrap Inductor's callable so that it does what the graph does.

    If an input is a zero tensor without memory, `module` itself runs: kernels cannot read such a tensor, and
    ATen has special rules for it.

    Args:
        compiled: Inductor's callable.
        module, example_inputs: the graph and its inputs in the trace, whose symbols may be in strides.
        constants: appended to the inputs.
        wrong: strides of results, by position, that Inductor's differ from. These results are copied.
        unread: how many results at the end are dropped.
    """
    symbolic = has_symbols(tuple(wrong.values()))

    def run(arguments: list[Any]) -> list[Any]:
        if any(isinstance(a, torch.Tensor) and tensor_impl.is_zero_tensor(a) for a in arguments):
            return list(module(*arguments))
        strides = substitute(wrong, example_inputs, arguments) if symbolic else wrong
        arguments.extend(constants)
        results = list(compiled(arguments))
        del results[len(results) - unread :]
        for position, stride in strides.items():
            value = results[position]
            laid_out = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
            results[position] = laid_out.copy_(value)
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
