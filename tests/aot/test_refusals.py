"""What is refused: by name, with advice, before anything is changed, and without harm to later calls."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

import aot
from aot import errors
from aot.capture.intercept.number_calls import NumberAsked
from oracles import Outcome, judge, observe
from tests.support.agreement import assert_agrees, fresh, leaf, non_leaf, values

pytestmark = pytest.mark.clause("refusals")

CLOSED_OVER = torch.ones(3)


@dataclass(frozen=True)
class Refusal:
    """A program that is refused, with what its message advises to do."""

    name: str
    error: type[aot.Unsupported]
    advice: str
    function: Callable[..., Any]
    make: Callable[[], list[Any]]


class Wrapped(Tensor):
    """A tensor subclass."""


def _write_and(action: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A program that changes what it can before it does what is refused."""

    def f(x: Tensor) -> Any:
        with torch.no_grad():
            x.mul_(2)
        torch.rand(3)
        return action(x)

    return f


def _detached_since(base: Tensor) -> Tensor:
    view = base[:]
    base.detach_()
    return view


def _taken_without_grad(x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [x, x[1:].requires_grad_()]


def _doubled(x: Tensor) -> None:
    with torch.no_grad():
        x.mul_(2)


def _grad_mode_left_off(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x * CLOSED_OVER


def _view_of_a_part(mode: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        with mode():
            y = x[1:]
        return y.sin()

    return f


def _viewed_before_a_write(use: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        y = x[1:]
        with torch.no_grad():
            x.mul_(2)
        return use(y)

    return f


STORED: list[Tensor] = []


def _stores(x: Tensor) -> Tensor:
    STORED.append(x * 2)
    return x + 1


def _set_to_a_result(x: Tensor, y: Tensor) -> Tensor:
    y.set_(x * 2)
    return y


def _assigned_a_loss(x: Tensor) -> None:
    x.data = functional.mse_loss(x, x).mul_(2)


def _leaf_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.detach().clone().requires_grad_()
    return y, y * 2


def _inference_tensor() -> list[Tensor]:
    with torch.inference_mode():
        made = torch.ones(3)
    return [made.detach()]


def _exchanges_for_an_inference_tensor(x: Tensor) -> None:
    with torch.inference_mode():
        made = x * 2
    x.data = made


def _writes_to_a_turned_view(x: Tensor) -> Tensor:
    view = x[...]
    view.t_()
    return view.mul_(2)


def _backward_inside(x: Tensor) -> Tensor:
    (x * x).sum().backward()
    return x * 2


def _hook_on_argument(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 2)
    return x * 2


RATES = [1.0]


class _ChangesWhatItReads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * RATES[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        RATES[0] = RATES[0] / 2 + 1
        return gradient * RATES[0]


def _seeding(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x * torch.rand(3)


REFUSALS = (
    Refusal(
        "hook",
        errors.UnsupportedHook,
        "register it outside",
        _write_and(_hook_on_argument),
        lambda: [leaf(3)],
    ),
    Refusal(
        "seed", errors.RandomStateMutation, "outside of the function", _write_and(_seeding), lambda: [leaf(3)]
    ),
    Refusal("subclass", errors.UnsupportedArgument, "plain tensors", torch.sin, lambda: [Wrapped(values(3))]),
    Refusal("sparse", errors.UnsupportedArgument, "to_dense", torch.sin, lambda: [values(3).to_sparse()]),
    Refusal("object", errors.UnsupportedArgument, "numbers", lambda x, o: x * 2, lambda: [leaf(3), object()]),
    Refusal(
        "output object", errors.UnsupportedOutput, "returned", _write_and(lambda x: {1}), lambda: [leaf(3)]
    ),
    Refusal(
        "sparse output",
        errors.UnsupportedOperation,
        "strided",
        _write_and(Tensor.to_sparse),
        lambda: [leaf(3)],
    ),
    Refusal(
        "generator",
        errors.UnsupportedOperation,
        "manual_seed",
        _write_and(lambda x: torch.rand(3, generator=torch.Generator()) * x),
        lambda: [leaf(3)],
    ),
    Refusal(
        "item in a condition",
        errors.DataDependentValue,
        "tensor",
        _write_and(lambda x: x * 2 if x.sum().item() > 0 else x),
        lambda: [leaf(3)],
    ),
    Refusal(
        "branch",
        errors.DataDependentValue,
        "tensor",
        _write_and(lambda x: x * 2 if x.sum() > 0 else x),
        lambda: [leaf(3)],
    ),
    Refusal(
        "asked about a mask",
        errors.DataDependentValue,
        "value",
        _write_and(lambda x: torch._nested_tensor_from_mask_left_aligned(x.reshape(1, 3, 1), x[None] > 0)),
        lambda: [leaf(3)],
    ),
    Refusal(
        "nonzero in a range",
        errors.DataDependentValue,
        "in a range",
        _write_and(lambda x: sum(x * i for i in range(len(x.nonzero())))),
        lambda: [leaf(3)],
    ),
    Refusal(
        "closure", errors.ClosureTensor, "pass it", _write_and(lambda x: x * CLOSED_OVER), lambda: [leaf(3)]
    ),
    Refusal(
        "closure returned",
        errors.ClosureTensor,
        "pass it",
        _write_and(lambda x: (x, CLOSED_OVER)),
        lambda: [leaf(3)],
    ),
    Refusal("grad mode left off", errors.ClosureTensor, "pass it", _grad_mode_left_off, lambda: [leaf(3)]),
    Refusal(
        "set_ to a result", errors.StorageMutation, "no_grad", _set_to_a_result, lambda: [leaf(3), values(3)]
    ),
    Refusal(
        "detached, then a leaf",
        errors.AutogradStateMutation,
        "outside",
        lambda x: x.detach_().requires_grad_() * 2,
        lambda: [non_leaf(3)],
    ),
    Refusal(
        "detached, then a leaf for a while",
        errors.AutogradStateMutation,
        "outside",
        lambda x: (x.detach_().requires_grad_()[0], x.requires_grad_(False))[0],
        lambda: [non_leaf(3)],
    ),
    *(
        Refusal(
            f"leaf taken without grad, {name}",
            errors.AutogradStateMutation,
            "detach it before",
            function,
            lambda: _taken_without_grad(non_leaf(4)),
        )
        for name, function in {
            "its base written": lambda x, y: (x.mul_(2), y * 2)[1],
            "itself written": lambda x, y: (_doubled(y), y * 2)[1],
        }.items()
    ),
    Refusal(
        "leaf taken without grad, its base made one with a history",
        errors.AutogradStateMutation,
        "detach it before",
        lambda x, y, z: x.mul_(z),
        lambda: [*_taken_without_grad(values(4)), leaf(4)],
    ),
    *(
        Refusal(
            f"view of what was detached since, {name}",
            errors.AutogradStateMutation,
            "to a clone",
            function,
            lambda: [_detached_since(non_leaf(4))],
        )
        for name, function in {
            "written": lambda x: x.mul_(2),
            "a part written": lambda x: x[1:].mul_(2),
            "of another shape": lambda x: x.unsqueeze_(0),
            "a view of another shape": lambda x: x[...].unsqueeze_(0),
        }.items()
    ),
    Refusal("stored outside", errors.EscapedTensor, "return it", _stores, lambda: [values(3)]),
    Refusal(
        "a backward that changes what it reads",
        errors.ClosureMutation,
        "in a hook on a result",
        _write_and(_ChangesWhatItReads.apply),
        lambda: [leaf(3)],
    ),
    Refusal(
        "write to a turned view of another dtype",
        errors.AutogradStateMutation,
        "another dtype",
        _writes_to_a_turned_view,
        lambda: [torch.view_as_complex(non_leaf(2, 2, 2))],
    ),
    Refusal("backward", errors.AutogradStateMutation, "autograd.grad", _backward_inside, lambda: [leaf(3)]),
    Refusal(
        "forgotten leaf",
        errors.AutogradStateMutation,
        "outside",
        _write_and(torch.sin),
        lambda: [values(4)[1:].requires_grad_()[1:]],
    ),
    *(
        Refusal(
            f"view of a part under {mode.__name__}, {name}",
            errors.AutogradStateMutation,
            "detach it",
            _view_of_a_part(mode),
            lambda part=part: [part(values(4)[1:].requires_grad_())],
        )
        for mode in (torch.no_grad, torch.inference_mode)
        for name, part in {"leaf": lambda x: x, "view": lambda x: x[...]}.items()
    ),
    *(
        Refusal(
            f"view of a part before a write, {name}",
            errors.AutogradStateMutation,
            "after the write",
            _viewed_before_a_write(use),
            lambda: [values(4)[1:].requires_grad_()],
        )
        for name, use in {"returned": lambda y: y, "read": torch.sin, "viewed": lambda y: y.view(-1)}.items()
    ),
    *(
        Refusal(
            f"put onto what {loss.__name__} leaves behind",
            errors.StorageMutation,
            "clone",
            lambda x, loss=loss: x.set_(loss(x, x)),
            lambda: [values(3)],
        )
        for loss in (functional.mse_loss, functional.smooth_l1_loss, functional.soft_margin_loss)
    ),
    Refusal(
        "assigned what a loss leaves behind",
        errors.StorageMutation,
        "clone",
        _assigned_a_loss,
        lambda: [values(3)],
    ),
    Refusal("leaf inside", errors.LeafCreatedInside, "outside", _write_and(_leaf_inside), lambda: [leaf(3)]),
    Refusal(
        "exchanged",
        errors.InferenceModeUnsupported,
        "clone",
        _exchanges_for_an_inference_tensor,
        lambda: [values(3)],
    ),
    Refusal("inference tensor", errors.UnsupportedArgument, "clone", torch.sin, _inference_tensor),
)
# The oracles read strided arguments that autograd may follow.
OBSERVED = [r for r in REFUSALS if r.name not in ("sparse", "conjugated", "inference tensor")]
BY_OTHER_TESTS = {
    errors.AutocastCacheUnsupported,  # test_autocast_cache
    errors.UnsupportedOption,
    errors.DoubleBackwardUnsupported,
    errors.SubclassMutation,
    errors.UnsupportedTangent,
}
READS: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("item", lambda x: x[0].item()),
    ("bool", lambda x: bool(x[0])),
    ("tolist", lambda x: x.tolist()),
    ("numpy", lambda x: x.numpy()),
    ("asarray", numpy.asarray),
    ("data_ptr", lambda x: x.data_ptr()),
    ("dlpack", torch.from_dlpack),
    ("deepcopy", copy.deepcopy),
    ("pickle", pickle.dumps),
    ("save", lambda x: torch.save(x, io.BytesIO())),
    ("nonzero", lambda x: x.nonzero()),
    ("send", ForkingPickler.dumps),
]
RECORDED = ("item", "tolist", "nonzero")
"""Those that are operations of the forward graph."""

each = pytest.mark.parametrize("refusal", REFUSALS, ids=[r.name for r in REFUSALS])


def all_refusals(root: type = aot.Unsupported) -> Iterator[type]:
    """Every class of refusals, but for the one that tells a front end how to trace again."""
    for one in root.__subclasses__():
        if one is not NumberAsked:
            yield one
        yield from all_refusals(one)


def _either(function: Callable[..., Any]) -> Callable[..., Any]:
    """A program that does what is refused, or something legal, as a flag says."""

    def f(arguments: list[Any], refused: bool) -> Any:
        return function(*arguments) if refused else arguments[0].sin()

    return f


@each
def test_the_call_is_refused_by_name_with_advice(refusal: Refusal) -> None:
    compiled = aot.aot_function(refusal.function, aot.nop)
    with pytest.raises(aot.Unsupported) as caught:
        compiled(*refusal.make())
    assert type(caught.value) is refusal.error
    assert refusal.advice in str(caught.value)
    assert compiled.specializations == ()


@each
@pytest.mark.parametrize("then", ["goes on", "raises another"])
def test_it_holds_where_the_function_catches_it(refusal: Refusal, then: str) -> None:
    def f(*arguments: Any) -> Any:
        try:
            return refusal.function(*arguments)
        except Exception:
            if then == "raises another":
                raise ValueError from None
            return arguments[0]

    with pytest.raises(refusal.error):
        aot.aot_function(f, aot.nop)(*refusal.make())


@pytest.mark.parametrize("read", READS, ids=[name for name, _ in READS])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_reading_memory_is_refused_where_the_function_catches_it(
    read: tuple[str, Callable[[Tensor], Any]], where: str
) -> None:
    def tried(x: Tensor) -> int:
        try:
            read[1](x.detach())
        except Exception:
            return 7
        return 2

    class Tries(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * tried(gradient)

    if where == "forward" and read[0] in RECORDED:
        assert_agrees(lambda x: x * tried(x), lambda: [leaf(3)])
        return
    f = (lambda x: x * tried(x)) if where == "forward" else Tries.apply
    with pytest.raises(aot.Unsupported):
        aot.aot_function(f, aot.nop)(leaf(3))


def test_errors_of_eager_may_be_caught(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return x @ torch.ones(4)
        except RuntimeError:
            return x * 7

    assert torch.equal(aot.aot_function(f, aot.nop)(values(3)), values(3) * 7)
    assert caplog.records == []


@each
def test_nothing_was_changed(refusal: Refusal) -> None:
    arguments = refusal.make()
    before = [_everything(a) for a in pytree.tree_leaves(arguments)]
    torch.manual_seed(7)
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    with pytest.raises(refusal.error):
        aot.aot_function(refusal.function, aot.nop)(*arguments)
    left = torch.is_grad_enabled()
    torch.set_grad_enabled(grad)
    assert left is grad
    assert torch.equal(torch.get_rng_state(), state)
    assert [_everything(a) for a in pytree.tree_leaves(arguments)] == before


def _everything(value: Any) -> Any:
    """What can be seen of an argument."""
    if not isinstance(value, Tensor):
        return repr(type(value))
    seen: list[Any] = [type(value), value.dtype, value.requires_grad, value.is_leaf, value.grad_fn]
    seen.append(value.grad if value.is_leaf else None)
    seen.append(value.to_dense().resolve_conj().tolist())
    if value.layout is torch.strided:
        storage = value.untyped_storage()
        seen += [value.shape, value.stride(), value.storage_offset(), storage.nbytes(), storage.data_ptr()]
    if not value.is_inference():
        seen.append(value._version)
    return seen


@pytest.mark.parametrize("refusal", OBSERVED, ids=[r.name for r in OBSERVED])
def test_the_oracles_see_no_mark_of_it(refusal: Refusal) -> None:
    def name(error: BaseException) -> str | None:
        return type(error).__name__ if isinstance(error, aot.Unsupported) else None

    compiled = aot.aot_function(refusal.function, aot.nop)
    eager = observe(refusal.function, lambda: fresh(refusal.make))
    target = observe(compiled, lambda: fresh(refusal.make), refusal=name)
    verdict = judge(eager, target)
    assert verdict.outcome is Outcome.POISONED, verdict.reason
    assert verdict.reason == f"refused: {refusal.error.__name__}"


@each
def test_a_later_legal_call_works(refusal: Refusal) -> None:
    compiled = aot.aot_function(_either(refusal.function), aot.nop)
    with torch.set_grad_enabled(True), pytest.raises(refusal.error):
        compiled(refusal.make(), True)
    x = leaf(3)
    y = compiled([x], False)
    y.sum().backward()
    assert torch.equal(y, x.sin())
    assert torch.equal(x.grad, x.detach().cos())
    with torch.set_grad_enabled(True), pytest.raises(refusal.error):
        compiled(refusal.make(), True)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_double_backward_is_refused_and_accumulates_nothing() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda g: g * 1)
        return y.exp()

    compiled = aot.aot_function(f, aot.nop)
    x = leaf(3)
    y = compiled(x)
    with pytest.raises(errors.DoubleBackwardUnsupported, match="original function"):
        y.sum().backward(create_graph=True)
    assert x.grad is None
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_every_refusal_is_provoked_here() -> None:
    provoked = {refusal.error for refusal in REFUSALS} | BY_OTHER_TESTS
    assert provoked == set(all_refusals())


def test_every_refusal_is_documented_as_a_limitation() -> None:
    text = Path(__file__).parents[2].joinpath("docs/reference/refusals.md").read_text(encoding="utf-8")
    missing = [one.__name__ for one in all_refusals() if f"`{one.__name__}`" not in text]
    assert missing == []


def test_every_refusal_says_what_it_is() -> None:
    for one in all_refusals():
        assert one.__doc__, one.__name__
        assert issubclass(one, aot.AotError)


def test_a_gradient_that_ends_inside_is_refused_where_no_argument_requires_grad() -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.ones(3, requires_grad=True)

    with pytest.raises(errors.LeafCreatedInside, match="pass it in"):
        aot.aot_function(f, aot.nop)(torch.ones(3))


def test_a_leaf_that_goes_on_saying_that_it_requires_grad() -> None:
    """It is a view of what does, taken without grad mode, and ceases to be a leaf for its own sake."""
    whole = leaf(2)
    with torch.no_grad():
        part = whole[:].requires_grad_()
    with pytest.raises(aot.errors.AutogradStateMutation, match="outside"):
        aot.aot_function(lambda x: x.requires_grad_(False) * 2, aot.nop)(part)
