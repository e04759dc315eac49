"""One snapshot of everything that the contract names: call a function on fresh arguments and look.

The order is: note what the arguments are; call; record ambient state, random state, structure and every
tensor's state; take gradients; write to the results in place, as a later program may, and take gradients
again (or do the steps that are asked for instead); then probe aliasing, because that writes everywhere and
would disturb all the rest; and last drop everything, and see what is still alive.
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

    `make` gives fresh, equal arguments each time; the default generators are seeded with `seed` before
    it, and again before the call. `grad` is the grad mode of the call, `inference` whether it is made in
    inference mode. `differentiate` picks the results
    of the first backward, as indices modulo their number into: the tensors of the result that require
    grad, in order, then the arguments and other inputs whose autograd history the call has changed;
    None is all of them. Further backwards start from one of these each (`gradients.choose_backward_roots`);
    then the results are written to, and backwards start anew: from all, and if that raises, from one each.
    `steps`, if there are any, are done instead of all this. `refusal` tells legitimate refusals among
    the exceptions of the call and of its backwards. After a refused call `retry`, the function as it is in
    eager, is called on the same objects. With `terms` the terms of gradients are measured;
    `under` is a dispatch mode around the call and each backward, as in `dense_operands` and `replay_rng`.

    Everything that the function leaves behind in this thread (modes, defaults, generators) is undone.
    The results are written to, so the function must not return aliases of tensors that outlive the call
    and are not among its arguments.

    Exceptions of `function` and of its backward are recorded; those of `make` are raised.

        observe(torch.sin, lambda: Arguments((torch.ones(2),))).raised    # None
    """
    with restoring_ambient() as ambient, measuring(terms), using_operation_mode(under):
        lifetimes = Lifetimes()
        told = None if refusal is None else _refusal_in_words(refusal)
        asked = _Request(make, seed, grad, inference, differentiate, tuple(steps), told, retry)
        observation = _observe_call(function, asked, ambient, lifetimes)
        alive = lifetimes.names_alive()
        return replace(observation, alive=alive, grown=0 if alive else lifetimes.memory_grown())


def _refusal_in_words(refusal: Refusal) -> Refusal:
    """The same, of which the reason is plain text that any file takes; TypeError for what is none."""

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
    """What `observe` was asked for."""

    make: Callable[[], Arguments]
    seed: int
    grad: bool
    inference: bool
    differentiate: tuple[int, ...] | None
    steps: tuple[Step, ...]
    refusal: Refusal | None
    retry: Callable[..., Any] | None
    before: tuple[TensorState, ...] | None = None  # of arguments that an earlier call was given, too


def _observe_call(
    function: Callable[..., Any], asked: _Request, ambient: Ambient, lifetimes: Lifetimes
) -> Observation:
    seed_generators(asked.seed)
    inputs = _Inputs.of(asked.make())
    lifetimes.watch(inputs.register.items())
    seed_generators(asked.seed)
    rng_digest_before = digest_of_generators()
    seed_generators(asked.seed)  # a digest draws
    objects = inputs.arguments.objects
    python = record_python_state(objects)
    result = error = None
    origin = ""
    with torch.inference_mode(asked.inference or ambient.inference_mode):
        torch.set_grad_enabled(asked.grad)
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
        refused=None if error is None or asked.refusal is None else asked.refusal(error),
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
            return _observe_returned(called, result, inputs, ambient, asked, lifetimes)
        return _observe_raised(called, inputs, ambient, asked)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Live arguments, and what was noted of them before the call."""

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
        """Make storages known that an argument was moved away from and that no known tensor sits on."""
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


def _observe_raised(called: Observation, inputs: _Inputs, ambient: Ambient, asked: _Request) -> Observation:
    """The snapshot of a call that raised: the inputs as they are, and as they were; and the retry."""
    inputs.note_lost_storages()
    retry = asked.retry if called.refused is not None else None
    states, _ = capture_tensors(inputs.register, inputs.witnesses, copying=retry is not None)
    retried: Observation | None = None
    if retry is not None:
        # Before fresh arguments are made: a module holds those that were made last.
        again = replace(asked, make=lambda: inputs.arguments, refusal=None, retry=None, before=states)
        retried = _observe_call(retry, again, ambient, Lifetimes())
    if asked.before is not None:
        paths = {state.path for state in states}
        before = tuple(state for state in asked.before if state.path in paths)
    else:
        # What they were is asked of fresh arguments, so that calls which succeed pay nothing for it.
        seed_generators(asked.seed)
        fresh = _Inputs.of(asked.make())
        before, _ = capture_tensors(fresh.register, fresh.witnesses)
    return replace(called, states=states, inputs=len(states), before=before, retried=retried)


def _observe_returned(
    called: Observation,
    result: Any,
    inputs: _Inputs,
    ambient: Ambient,
    asked: _Request,
    lifetimes: Lifetimes,
) -> Observation:
    """The snapshot of a call that returned."""
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
    if asked.steps:
        seen = _observe_steps(seen, inputs, results, known, asked)
    else:
        seen = _observe_gradients(seen, inputs, results, known, ambient, asked)
    return replace(seen, reaches=probe_aliases(states, known))


def _observe_steps(
    seen: Observation,
    inputs: _Inputs,
    results: Roots,
    known: Sequence[Known],
    asked: _Request,
) -> Observation:
    """The records of the steps that were asked for."""
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
        asked.refusal,
    )
    records = tuple(steps.take_steps(asked.steps))
    return replace(seen, steps=records, refused=steps.refused)


def _observe_gradients(
    seen: Observation,
    inputs: _Inputs,
    results: Roots,
    known: Sequence[Known],
    ambient: Ambient,
    asked: _Request,
) -> Observation:
    """Backwards, a write to each result, and further backwards."""
    targets = inputs.history.targets()
    roots = differentiable(results) + inputs.history.moved()
    runs: list[GradientRun] = []
    refused: str | None = None
    ambient_after: Ambient | None = None
    generator_after: str | None = None
    for chosen in choose_backward_roots(len(roots), asked.differentiate) if targets else ():
        taken = differentiate_roots(tuple(roots[index] for index in chosen), targets, chosen)
        if not runs:
            ambient_after = record_ambient()
            restore_ambient(ambient, ambient_after)
            torch.set_grad_enabled(True)
            generator_after = digest_of_generators()
        runs.append(taken.run)
        if taken.error is not None and asked.refusal is not None and refused is None:
            refused = asked.refusal(taken.error)

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
            if last[0].raised is not None:  # which of them it is that raises
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
