"""Faults in how a call is taken apart: its key, the guards, and the tensors that stand for its arguments."""

from __future__ import annotations

from functools import partial

from bench.fuzzer.seeded_bugs.seeded_bug import Fault

_fault = partial(Fault, stage="inputs")
_REPEAT = ("repeat",)

FAULTS = (
    _fault(
        name="the key forgets shapes",
        module="aot.specialize.call",
        find="type(tensor),\n                tensor.shape,",
        replace="type(tensor),\n                tensor.dim(),",
        clauses=_REPEAT,
        wrong="A later call with tensors of other sizes is answered by the graph of the first.",
    ),
    _fault(
        name="the key forgets strides",
        module="aot.specialize.call",
        find="tensor.stride(),\n",
        replace="None,\n",
        clauses=_REPEAT,
        wrong="A later call with tensors that lie otherwise gets results and views as the first did.",
    ),
    _fault(
        name="the key forgets offsets",
        module="aot.specialize.call",
        find="tensor.storage_offset(),\n",
        replace="None,\n",
        clauses=_REPEAT,
        wrong="A later call with a tensor elsewhere in its storage gets views of the place of the first.",
    ),
    _fault(
        name="the key forgets dtypes",
        module="aot.specialize.call",
        find="tensor.is_neg(),\n                tensor.dtype,",
        replace="tensor.is_neg(),\n                None,",
        clauses=_REPEAT,
        wrong="A later call with numbers of another dtype is answered by the graph of the first.",
    ),
    _fault(
        name="the key forgets requires_grad",
        module="aot.specialize.call",
        find="tensor.requires_grad,\n                leaf,",
        replace="None,\n                leaf,",
        clauses=_REPEAT,
        wrong="A later call whose tensors require grad gets results without a history, or the reverse.",
    ),
    _fault(
        name="the key forgets leaves",
        module="aot.specialize.call",
        find="leaf,\n                leaf and tensor.grad is not None,",
        replace="None,\n                tensor.is_leaf and tensor.grad is not None,",
        clauses=_REPEAT,
        wrong="A later call with a result of something is answered as one with a leaf.",
    ),
    _fault(
        name="the key forgets conjugation",
        module="aot.specialize.call",
        find="tensor.is_conj(),\n",
        replace="None,\n",
        clauses=_REPEAT,
        wrong="A later call with a lazily conjugated tensor is answered as one with a plain one.",
    ),
    _fault(
        name="the key forgets autocast",
        module="aot.torch_internals.ambient_state",
        find="    autocast = torch._C._is_any_autocast_enabled()\n    return (\n"
        "        torch.is_grad_enabled(),",
        replace="    autocast = False\n    return (\n        torch.is_grad_enabled(),",
        clauses=_REPEAT,
        wrong="A call under autocast is answered as one without was.",
    ),
    _fault(
        name="the key forgets which share storage",
        module="aot.specialize.call",
        find="group,\n                bases.setdefault(identity, len(bases)),",
        replace="None,\n                bases.setdefault(identity, len(bases)),",
        clauses=_REPEAT,
        wrong="A later call in which two tensors share memory is answered as one in which they do not.",
    ),
    _fault(
        name="the key forgets which are views of one base",
        module="aot.specialize.call",
        find="bases.setdefault(identity, len(bases)),",
        replace="None,",
        clauses=_REPEAT,
        wrong="A later call with a view and a detached alias is answered as one with two views.",
    ),
    _fault(
        name="the key forgets which are one object",
        module="aot.specialize.call",
        find="key.append(index)",
        replace="key.append(None)",
        clauses=_REPEAT,
        wrong="f(x, x, y) is answered as f(x, y, y) was.",
    ),
    _fault(
        name="the key forgets Python numbers",
        module="aot.specialize.call",
        find="key.append(_constant_argument_key(position, leaf))",
        replace="key.append(None)",
        clauses=_REPEAT,
        wrong="A later call with another number is computed with the number of the first.",
    ),
    _fault(
        name="the key forgets the type of numbers",
        module="aot.tensors.constants",
        find="return (type(value), value)\n",
        replace="return value\n",
        clauses=_REPEAT,
        wrong="A call with True is answered as one with 1 was.",
    ),
    _fault(
        name="the key forgets the sign of zero",
        module="aot.tensors.constants",
        find="return (type(value), value.hex())  # 0.0",
        replace="return (type(value), value)  # 0.0",
        clauses=_REPEAT,
        wrong="A call with -0.0 is answered as one with 0.0 was.",
    ),
    _fault(
        name="the key forgets what requires grad behind a view",
        module="aot.specialize.call",
        find="root.requires_grad,\n                    root.is_leaf,",
        replace="None,\n                    root.is_leaf,",
        clauses=_REPEAT,
        wrong="A view whose base requires grad, taken under no_grad, is answered as one of another base.",
    ),
    _fault(
        name="the key forgets how a view was made",
        module="aot.specialize.call",
        find="autograd_state.creation_meta(tensor),\n"
        "                    autograd_state.can_accumulate_grad(tensor),",
        replace="None,\n                    autograd_state.can_accumulate_grad(tensor),",
        clauses=_REPEAT,
        wrong="A view that was taken under no_grad is answered as one that was not.",
    ),
    _fault(
        name="the key forgets grad mode",
        module="aot.torch_internals.ambient_state",
        find="        torch.is_grad_enabled(),\n        torch.get_default_dtype(),",
        replace="        None,\n        torch.get_default_dtype(),",
        clauses=_REPEAT,
        wrong="A call under no_grad is answered as one in grad mode was, or the reverse.",
    ),
    _fault(
        name="the key forgets inference mode",
        module="aot.torch_internals.ambient_state",
        find=" if autocast else None,\n        torch.is_inference_mode_enabled(),",
        replace=" if autocast else None,\n        None,",
        clauses=_REPEAT,
        wrong="A call in inference mode is answered as one under no_grad was.",
    ),
    _fault(
        name="the key forgets version counters",
        module="aot.specialize.call",
        find="key.append(counter_groups(tuple(together.values())))",
        replace="key.append(None)",
        clauses=_REPEAT,
        wrong="`.data` of an argument is answered as its `detach()` was: writes count together.",
    ),
    _fault(
        name="guards always hold",
        module="aot.guards.guard",
        find='hold: Callable[[], bool] = scope.pop("hold")',
        replace="hold: Callable[[], bool] = lambda: True",
        clauses=_REPEAT,
        wrong="A later call finds another number in a closure, a global or a module's training flag, and "
        "is computed with the old one.",
    ),
    _fault(
        name="views count as taken in grad mode",
        module="aot.tensors.fake_tensors",
        find="with torch.set_grad_enabled(grad):",
        replace="with torch.enable_grad():",
        clauses=("autograd-metadata", "gradients", "errors"),
        wrong="An argument that is a view taken under no_grad leads to its base in the trace.",
    ),
    _fault(
        name="how a view argument was made is lost",
        module="aot.tensors.fake_tensors",
        find="    autograd_state.copy_creation_meta(tensor, view)\n",
        replace="    pass\n",
        clauses=("errors", "gradients", "autograd-metadata"),
        wrong="A write to a view that autograd refuses in eager is allowed.",
    ),
    _fault(
        name="a base that is a leaf is taken for none",
        module="aot.tensors.fake_tensors",
        find="            if real.is_leaf:\n                fake.detach_().requires_grad_(True)\n"
        "            else:\n                autograd_state.make_non_leaf(fake)\n    return fakes, roots",
        replace="            autograd_state.make_non_leaf(fake)\n    return fakes, roots",
        clauses=("errors", "autograd-metadata"),
        wrong="A write to a view of a leaf, which eager forbids, is begun.",
    ),
    _fault(
        name="aliases of a storage count their writes apart",
        module="aot.tensors.fake_tensors",
        find="fake = relative.detach()",
        replace="fake = relative.data",
        clauses=("versions", "errors"),
        wrong="A write to an argument does not move the counter of another that is its `detach()`.",
    ),
)
