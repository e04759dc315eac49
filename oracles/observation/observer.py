"""Observer: call a function once on fresh arguments and record everything that the contract names.

In: a function, and a function that makes `Arguments`. Out: an `Observation`.

The order is:

1. Record the arguments, then call the function.
2. Record ambient state, random state, structure and the state of every tensor.
3. Take gradients, write to the results in place as a later program may, and take gradients again. If the case
   has steps of its own, do these instead.
4. Probe aliasing. This comes late because it writes to every shared storage.
5. Drop everything, and look which memory is still alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from oracles.object_names import class_name, encodable
from oracles.observation.alias_probe import probe_aliases
from oracles.observation.ambient import (
    digest_of_generators,
    record_ambient,
    restore_ambient,
    restoring_ambient,
    seed_generators,
)
from oracles.observation.exception_origin import exception_origin
from oracles.observation.gradients import (
    MAX_SINGLE_ROOTS,
    History,
    Roots,
    choose_backward_roots,
    differentiable,
    differentiate_roots,
    may_be_written,
    measuring,
    observe_later_write,
    record_exception,
)
from oracles.observation.leaks import Lifetimes
from oracles.observation.mode_stacks import recording_leaked_modes
from oracles.observation.operation_mode import OperationMode, current_operation_mode, using_operation_mode
from oracles.observation.python_state import record_python_state
from oracles.observation.records import (
    Ambient,
    Arguments,
    GradientRun,
    LaterWrite,
    Observation,
    Refusal,
    TensorState,
)
from oracles.observation.result_structure import has_memory, result_tree_nodes
from oracles.observation.steps import Step, Steps
from oracles.observation.tensor_state import (
    BeforeCall,
    Known,
    Register,
    capture_tensors,
    leaf_and_grad_fn,
    storage_as_tensor,
)


def observe(
    function: Callable[..., Any],
    make: Callable[[], Arguments],
    *,
    seed: int = 0,
    grad: bool = True,
    inference: bool = False,
    differentiate: tuple[int, ...] | None = None,
    steps: Sequence[Step] = (),
    refusal: Refusal | None = None,
    retry: Callable[..., Any] | None = None,
    terms: bool = False,
    under: OperationMode | None = None,
) -> Observation:
    """Call `function(*make().args)` once and record all that can be seen afterwards.

    Without `steps`, backwards and writes follow a returned call. The first backward starts from the results
    that `differentiate` picks; further ones start from one result each (`gradients.choose_backward_roots`).
    Then the results are written to. A last backward starts from all results, and if it raises, one more from
    each.

    Everything that the function leaves behind in this thread (modes, defaults, generators) is undone. The
    results are written to, so the function must not return aliases of tensors that outlive the call and are
    not among its arguments.

    Args:
        function: the function. Its exceptions, and those of its backwards, are recorded.
        make: gives fresh, equal arguments each time. Its exceptions are raised.
        seed: seeds the default generators before `make`, and again before the call.
        grad: the grad mode of the call.
        inference: make the call in inference mode.
        differentiate: results of the first backward, as indices modulo their number; None is all. They count
            the tensors of the result that require grad, in order, then the inputs whose autograd history the
            call has changed.
        steps: what to do after the call, instead of these backwards and writes.
        refusal: gives the reason if an exception of the call or of a backward is a legitimate refusal.
        retry: the function in eager, which is called on the same objects after a refused call.
        terms: measure the terms of gradients.
        under: a dispatch mode around the call and each backward, as in `dense_operands` and `replay_rng`.

    Raises:
        TypeError: `refusal` gives a reason that is no text.
        Unobservable: a result raises when it is looked at.

    Example:
        observe(torch.sin, lambda: Arguments((torch.ones(2),))).raised    # None
    """
    with restoring_ambient() as ambient, measuring(terms), using_operation_mode(under):
        lifetimes = Lifetimes()
        readable_refusal = None if refusal is None else _refusal_in_words(refusal)
        request = _Request(make, seed, grad, inference, differentiate, tuple(steps), readable_refusal, retry)
        observation = _observe_call(function, request, ambient, lifetimes)
        alive = lifetimes.names_alive()
        return replace(observation, alive=alive, grown=0 if alive else lifetimes.memory_grown())


def _refusal_in_words(refusal: Refusal) -> Refusal:
    """Wrap `refusal` so that its reasons are text that UTF-8 can encode.

    The wrapper raises TypeError if a reason is no text.
    """

    def reason_of(error: BaseException) -> str | None:
        reason: object = refusal(error)
        if reason is None:
            return None
        if not issubclass(type(reason), str):
            kind = class_name(type(reason))
            raise TypeError(f"the target's refusal gives a {kind}, and not text or None")
        return encodable(reason)  # type: ignore[arg-type]

    return reason_of


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `observe`."""

    make: Callable[[], Arguments]
    seed: int
    grad: bool
    inference: bool
    differentiate: tuple[int, ...] | None
    steps: tuple[Step, ...]
    refusal: Refusal | None
    retry: Callable[..., Any] | None
    before: tuple[TensorState, ...] | None = None  # states of the arguments, if an earlier call had them too


def _observe_call(
    function: Callable[..., Any], request: _Request, ambient: Ambient, lifetimes: Lifetimes
) -> Observation:
    seed_generators(request.seed)
    inputs = _Inputs.of(request.make())
    lifetimes.watch(inputs.register.items())
    seed_generators(request.seed)
    rng_digest_before = digest_of_generators()
    seed_generators(request.seed)  # a digest draws
    objects = inputs.arguments.objects
    python = record_python_state(objects)
    result = error = None
    origin = ""
    with torch.inference_mode(request.inference or ambient.inference_mode):
        torch.set_grad_enabled(request.grad)
        before = record_ambient()
        try:
            with current_operation_mode(), recording_leaked_modes() as modes:
                result = function(*inputs.arguments.args)
        except Exception as exception:
            origin = exception_origin(exception.__traceback__)
            error = BaseException.with_traceback(exception, None)  # whose frames would keep tensors alive
        left = replace(record_ambient(), modes=modes.names)
    restore_ambient(ambient, left)
    rng_digest_after = digest_of_generators()
    called = Observation(
        raised=None if error is None else record_exception("call", error, origin),
        refused=None if error is None or request.refusal is None else request.refusal(error),
        states=(),
        inputs=0,
        ambient_before=before,
        ambient=left,
        drew=rng_digest_after != rng_digest_before,
        generator=rng_digest_after,
        generator_before=rng_digest_before,
        python_before=python,
        python=record_python_state(objects),
    )
    with torch.enable_grad():
        if error is None:
            return _observe_returned(called, result, inputs, ambient, request, lifetimes)
        return _observe_raised(called, inputs, ambient, request)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Live arguments, and what was recorded of them before the call.

    Attributes:
        arguments: what `make` gave.
        register: all tensors in and behind the arguments, by path.
        history: their autograd edges.
        witnesses: their versions and storages, by path.
    """

    arguments: Arguments
    register: Register
    history: History
    witnesses: dict[str, BeforeCall]

    @staticmethod
    def of(arguments: Arguments) -> _Inputs:
        register = Register()
        for node in result_tree_nodes(arguments.args, "arg"):
            if node.tensor is not None:
                register.add(node.path, node.tensor)
        for name, tensor in arguments.leaves.items():
            register.add(f"leaf[{name!r}]", tensor)
        targets = len(register)
        for name, tensor in arguments.tensors.items():
            register.add(f"tensor[{name!r}]", tensor)
        with torch.enable_grad():
            history = History(register, targets)
        witnesses = {path: BeforeCall.of(tensor) for path, tensor in register.items()}
        return _Inputs(arguments, register, history, witnesses)

    def note_lost_storages(self) -> None:
        """Register each storage that an argument has left, if no known tensor uses it."""
        live = {
            tensor.untyped_storage().data_ptr() for _, tensor in self.register.items() if has_memory(tensor)
        }
        for path, tensor in self.register.items():
            witness = self.witnesses.get(path)
            if witness is None or witness.storage is None or witness.kept_storage(tensor) is not False:
                continue
            if witness.storage.data_ptr() not in live:
                live.add(witness.storage.data_ptr())
                self.register.add(f"old storage of {path}", storage_as_tensor(witness.storage, witness.dtype))


def _observe_raised(called: Observation, inputs: _Inputs, ambient: Ambient, request: _Request) -> Observation:
    """The observation of a call that raised: the inputs now and before the call, and the retry."""
    inputs.note_lost_storages()
    retry = request.retry if called.refused is not None else None
    states, _ = capture_tensors(inputs.register, inputs.witnesses, copying=retry is not None)
    retried: Observation | None = None
    if retry is not None:
        # The retry comes before `make`: a module holds the arguments that were made last.
        again = replace(request, make=lambda: inputs.arguments, refusal=None, retry=None, before=states)
        retried = _observe_call(retry, again, ambient, Lifetimes())
    if request.before is not None:
        paths = {state.path for state in states}
        before = tuple(state for state in request.before if state.path in paths)
    else:
        # Fresh arguments show the state before the call, so that calls which return pay nothing for it.
        seed_generators(request.seed)
        fresh = _Inputs.of(request.make())
        before, _ = capture_tensors(fresh.register, fresh.witnesses)
    return replace(called, states=states, inputs=len(states), before=before, retried=retried)


def _observe_returned(
    called: Observation,
    result: Any,
    inputs: _Inputs,
    ambient: Ambient,
    request: _Request,
    lifetimes: Lifetimes,
) -> Observation:
    """The observation of a call that returned."""
    register = inputs.register
    inputs.note_lost_storages()
    arguments_now = tuple(result_tree_nodes(inputs.arguments.args, "arg"))
    for node in arguments_now:
        if node.tensor is not None:
            register.add(node.path, node.tensor)
    count = len(register)
    result_nodes = tuple(result_tree_nodes(result, "out"))
    results = tuple((node.path, node.tensor) for node in result_nodes if node.tensor is not None)
    outputs = tuple((path, register.add(path, tensor)) for path, tensor in results)
    states, known = capture_tensors(register, inputs.witnesses)
    lifetimes.watch(register.items())
    seen = replace(
        called,
        states=states,
        inputs=count,
        structure=tuple((node.path, node.description) for node in (*result_nodes, *arguments_now)),
        outputs=outputs,
        moved=tuple(path for path, _ in inputs.history.moved()),
    )
    if request.steps:
        seen = _observe_steps(seen, inputs, results, known, request)
    else:
        seen = _observe_gradients(seen, inputs, results, known, ambient, request)
    return replace(seen, reaches=probe_aliases(states, known))


def _observe_steps(
    seen: Observation,
    inputs: _Inputs,
    results: Roots,
    known: Sequence[Known],
    request: _Request,
) -> Observation:
    """Do the steps of the request and record them."""
    arguments = result_tree_nodes(inputs.arguments.args, "arg")
    tensors = {f"tensor[{name!r}]": tensor for name, tensor in inputs.arguments.tensors.items()}
    tensors |= {node.path: node.tensor for node in arguments if node.tensor is not None}
    leaves = tuple(
        (path, tensor)
        for path, tensor in inputs.register.items()[: seen.inputs]
        if tensor.requires_grad and leaf_and_grad_fn(tensor)[0]
    )
    steps = Steps(
        lambda: differentiable(results) + inputs.history.moved(),
        inputs.history.moved,
        inputs.history.targets(),
        leaves,
        tensors | dict(results),
        known,
        request.refusal,
    )
    records = tuple(steps.take_steps(request.steps))
    return replace(seen, steps=records, refused=steps.refused)


def _observe_gradients(
    seen: Observation,
    inputs: _Inputs,
    results: Roots,
    known: Sequence[Known],
    ambient: Ambient,
    request: _Request,
) -> Observation:
    """Run backwards, write to each result, and run further backwards."""
    targets = inputs.history.targets()
    roots = differentiable(results) + inputs.history.moved()
    runs: list[GradientRun] = []
    refused: str | None = None
    ambient_after: Ambient | None = None
    generator_after: str | None = None
    for chosen in choose_backward_roots(len(roots), request.differentiate) if targets else ():
        taken = differentiate_roots(tuple(roots[index] for index in chosen), targets, chosen)
        if not runs:
            ambient_after = record_ambient()
            restore_ambient(ambient, ambient_after)
            torch.set_grad_enabled(True)
            generator_after = digest_of_generators()
        runs.append(taken.run)
        if taken.error is not None and request.refusal is not None and refused is None:
            refused = request.refusal(taken.error)

    writes: Sequence[LaterWrite] = ()
    last: list[GradientRun] = []
    if refused is None:
        # By object, so that a result which is returned twice is written to once.
        unique = {name: tensor for (_, tensor), (_, name) in zip(results, seen.outputs, strict=True)}
        writes = [
            observe_later_write(name, tensor, known)
            for name, tensor in unique.items()
            if may_be_written(tensor)
        ]
        later = differentiable(results) + inputs.history.moved()
        if later and targets and any(write.raised is None for write in writes):
            last.append(differentiate_roots(later, targets, range(len(later))).run)
            if last[0].raised is not None:  # to see which of the results raises
                last += [
                    differentiate_roots((later[index],), targets, (index,)).run
                    for index in range(min(len(later), MAX_SINGLE_ROOTS) if len(later) > 1 else 0)
                ]
    return replace(
        seen,
        refused=refused,
        gradients=tuple(runs),
        ambient_after_backward=ambient_after,
        generator_after_backward=generator_after,
        later_writes=tuple(writes),
        later_gradients=tuple(last),
    )
