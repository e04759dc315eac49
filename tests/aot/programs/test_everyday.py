"""What everyday programs do around their tensors, and no generated program does: containers, constants of
classes of their own, settings for a while, hooks of all modules, copies of what is compiled."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree

import aot
from aot.errors import ClosureMutation, UnsupportedArgument, UnsupportedOperation, UnsupportedOutput
from tests.support.agreement import assert_agrees, assert_same_story, checking_nop, leaf, told, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("structure", "values")]

# ---- containers among the arguments


@dataclasses.dataclass
class Batch:
    x: Tensor
    scale: int


pytree.register_pytree_node(
    Batch, lambda b: ([b.x], b.scale), lambda parts, scale: Batch(next(iter(parts)), scale)
)


def _appends(held: list[Tensor]) -> Tensor:
    held.append(held[0] * 2)
    return held[1] + 1


def _takes_out(held: list[Tensor]) -> Tensor:
    return held.pop() * 2


def _replaces(held: list[Tensor]) -> Tensor:
    held[0] = held[0] * 2
    return held[0] + 1


def _swaps(held: list[Tensor]) -> Tensor:
    held.reverse()
    return held[0] - held[1]


def _sets(held: dict[str, Tensor]) -> Tensor:
    held["y"] = held["x"] * 2
    return held["y"] + 1


def _deletes(held: dict[str, Tensor]) -> Tensor:
    return held.pop("x") * 2


def _moves_on(held: deque[Tensor]) -> Tensor:
    held.rotate()
    return held[0] * 2


def _counts(held: dict[str, Any]) -> Tensor:
    held["step"] += 1
    return held["x"] * held["step"]


def _rebinds(held: Batch) -> Tensor:
    held.x = held.x * held.scale
    return held.x + 1


def _scales(held: Batch) -> Tensor:
    held.scale += 1
    return held.x * held.scale


CHANGES: dict[Callable[..., Tensor], Callable[[], Any]] = {
    _appends: lambda: [values(2)],
    _takes_out: lambda: [values(2), values(2, start=5)],
    _replaces: lambda: [values(2)],
    _swaps: lambda: [values(2), values(2, start=5)],
    _sets: lambda: {"x": values(2)},
    _deletes: lambda: {"x": values(2)},
    _moves_on: lambda: deque([values(2), values(2, start=5)]),
    _counts: lambda: {"x": values(2), "step": 1},
    _rebinds: lambda: Batch(values(2), 3),
    _scales: lambda: Batch(values(2), 3),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_container_among_the_arguments_that_is_changed_is_refused(change: Callable[..., Tensor]) -> None:
    held = CHANGES[change]()
    before = told(copy.deepcopy(held)) if not isinstance(held, Batch) else (told(held.x), held.scale)
    with pytest.raises(ClosureMutation, match="changes a container"):
        aot.aot_function(change, checking_nop)(held)
    assert (told(held) if not isinstance(held, Batch) else (told(held.x), held.scale)) == before


def test_containers_that_are_read_or_copied_are_none() -> None:
    def f(held: list[Tensor], *, by: dict[str, Any], **rest: Any) -> Tensor:
        rest.pop("unused")
        own = [*held, by["x"]]
        own.append(own.pop(0) * by["step"])
        return sum(own, torch.zeros(2))

    def story(function: Callable[..., Tensor]) -> Any:
        held, by = [values(2)], {"x": values(2, start=5), "step": 3}
        return function(held, by=by, unused=1), held, by

    assert_same_story(f, story)


# ---- constants of classes of their own


class Side(enum.IntEnum):
    LEFT = 1
    RIGHT = 2


class Name(enum.StrEnum):
    ONE = "one"


@pytest.mark.parametrize("constant", [Side.LEFT, Name.ONE, numpy.float64(0.5)], ids=repr)
def test_constants_of_subclasses_come_back_as_they_are(constant: Any) -> None:
    def f(x: Tensor, given: Any) -> Any:
        return x * len(str(given)), given, [type(given)(given)]

    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        expected, got = f(values(2), constant), compiled(values(2), constant)
        assert told(got) == told(expected)
        assert type(got[1]) is type(got[2][0]) is type(constant)


# ---- settings for a while


def _in_doubles(make: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return make(x)
        finally:
            torch.set_default_dtype(torch.float32)

    return f


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + torch.ones(3),
        lambda x: x * torch.rand(3),
        lambda x: x * torch.linspace(0, 1, 3) + torch.arange(0, 1.5, 0.5),
        lambda x: (x + 2.5, torch.tensor(1.5) * x, x.new_zeros(2)),
        lambda x: torch.full((3,), 0.1) - x,
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_another_default_dtype_for_a_while(make: Callable[[Tensor], Any], dynamic: bool) -> None:
    f = _in_doubles(make)
    compiled = aot.aot_function(f, checking_nop, dynamic=dynamic)
    for _ in range(2):
        torch.manual_seed(0)
        expected = f(leaf(3))
        torch.manual_seed(0)
        assert told(compiled(leaf(3))) == told(expected)


@pytest.mark.parametrize("make", [lambda x: x / 2, torch.sin, lambda x: x * 0.5])
def test_what_depends_on_it_otherwise_is_refused(make: Callable[[Tensor], Any]) -> None:
    compiled = aot.aot_function(_in_doubles(make), checking_nop)
    with pytest.raises(UnsupportedOperation, match="default dtype"):
        compiled(torch.arange(3))
    assert torch.get_default_dtype() is torch.float32


def test_ranges_of_the_profiler_are_no_part_of_a_graph() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.profiler.record_function("outer"):
            y = x.sin()
            with torch.autograd.profiler.record_function("inner"):
                return y * x

    assert_agrees(f, lambda: [leaf(3)])


# ---- half precision beside parameters of full precision


def _normalized(norm: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return norm(x, weight, bias).float().sin().sum()

    return f


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, torch.zeros(8), torch.ones(8), weight, bias, training=True)


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch": _batch_norm,
    "layer": lambda x, weight, bias: functional.layer_norm(x.transpose(1, 2), (8,), weight, bias),
    "group": lambda x, weight, bias: functional.group_norm(x, 2, weight, bias),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [3, 2000])  # kernels are not asked about large arguments, otherwise
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision(norm: str, length: int, dtype: torch.dtype, dynamic: bool) -> None:
    f = _normalized(NORMS[norm])

    def story(function: Callable[..., Any]) -> Any:
        given = leaf(2, 8, length, dtype=dtype), leaf(8), leaf(8, start=3)
        loss = function(*given)
        loss.backward()
        return [loss, *(t.grad for t in given)]

    with aot.config.patch(debug_assert=True):  # what a graph makes has the dtype that it is said to have
        compiled = aot.aot_function(f, checking_nop, dynamic=dynamic)
        for _ in range(2):
            expected, got = story(f), story(compiled)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one, other)


def test_a_loss_of_two_dtypes() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return functional.huber_loss(x, y)

    with aot.config.patch(debug_assert=True):
        compiled = aot.aot_function(f, checking_nop)
        got = compiled(values(90, 90, dtype=torch.bfloat16), values(90, 90, start=7))
    expected = f(values(90, 90, dtype=torch.bfloat16), values(90, 90, start=7))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_network_under_autocast_trains() -> None:
    def story(compile_module: Callable[[nn.Module], nn.Module]) -> Any:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.LayerNorm(4))
        compiled = compile_module(network)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = compiled(values(5, 3)).float().square().mean()
            loss.backward()
        return told([loss, *network.buffers(), *(p.grad for p in network.parameters())])

    assert story(lambda module: aot.aot_module(module, checking_nop)) == story(lambda module: module)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_a_mean_of_ctc_losses(zero_infinity: bool) -> None:
    def f(x: Tensor, targets: Tensor) -> Tensor:
        return functional.ctc_loss(x.log_softmax(-1), targets, (5, 4), (2, 0), zero_infinity=zero_infinity)

    assert_agrees(f, lambda: [leaf(5, 2, 3), torch.ones(2, 2, dtype=torch.int64)])


# ---- zeros without memory


def test_what_is_zero_without_memory_is_not_overwritten() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.func.hessian(lambda v: (v**3).sum())(x)

    assert_agrees(f, lambda: [leaf(3)])


def _loss_of_itself(x: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, x).sgn()


@pytest.mark.parametrize("f", [_loss_of_itself, lambda x: x.exp().sgn(), lambda x: (x * x).sgn() + x**0])
def test_a_gradient_that_is_zero_without_memory_says_so(f: Callable[..., Tensor]) -> None:
    """A formula that is given such gives such, which requires no grad."""

    def story(function: Callable[..., Any]) -> Any:
        x = leaf(3) * 1
        results = function(x)
        (gradient,) = torch.autograd.grad(results, x, torch.ones_like(results), create_graph=True)
        return gradient.requires_grad, gradient._is_zerotensor(), gradient.clone()

    assert_same_story(f, story)


# ---- complex numbers

COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "times i": lambda x: x * 1j,
    "real part": lambda x: (x * (1 + 2j)).real,
    "plus i": lambda x: x.exp() + 1j,
    "divided": lambda x: (x / 2j).abs(),
    "from the left": lambda x: 2j - 3j * x,
    "of double precision": lambda x: x.double() * 1j,
    "in place": lambda x: x.to(torch.complex64).mul_(1j),
}


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_numbers(name: str, shape: tuple[int, ...], dynamic: bool) -> None:
    """Autograd conjugates them, which makes them tensors."""

    def told_of(function: Callable[..., Any]) -> Any:
        x = leaf(*shape)
        result = function(x)
        (first,) = torch.autograd.grad(result, x, torch.ones_like(result), create_graph=True)
        if not first.requires_grad:
            return told([result, first])
        (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        return told([result, first, second])

    function = COMPLEX[name]
    assert told_of(aot.aot_function(function, checking_nop, dynamic=dynamic)) == told_of(function)


# ---- hooks of all modules


def test_hooks_of_all_modules_count() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    compiled = aot.aot_module(layer, checking_nop)
    plain = layer(torch.ones(1, 3))
    assert told(compiled(torch.ones(1, 3))) == told(plain)

    def double(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return result * 2 if module is layer else result  # what is compiled is a module, too

    with register_module_forward_hook(double):
        assert told(compiled(torch.ones(1, 3))) == told(plain * 2)
    assert told(compiled(torch.ones(1, 3))) == told(plain)
    assert len(compiled.compiled.specializations) == 2


# ---- copies of what is compiled


def _through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.deepcopy, _through_pickle])
def test_a_copy_of_a_compiled_module_is_a_module_of_its_own(copied: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    original = aot.aot_module(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), aot.nop, dynamic=True)
    original(values(2, 3)).sum().backward()
    twin = copied(original)
    assert told(twin(values(4, 3))) == told(original(values(4, 3)))
    with torch.no_grad():
        twin.orig_module[0].weight.zero_()
    assert told(twin(values(4, 3))) != told(original(values(4, 3)))
    assert twin.compiled.module is twin.orig_module is not original.orig_module
    assert len(twin.compiled.specializations) == 1  # made for its own first call, and not copied


def test_a_copy_of_a_compiled_function_asks_for_what_the_function_reads() -> None:
    by = [2]

    def f(x: Tensor) -> Tensor:
        return x * by[0]

    compiled = aot.aot_function(f, checking_nop)
    compiled(values(2))
    twin = copy.deepcopy(compiled)
    by[0] = 3
    assert told(twin(values(2))) == told(f(values(2)))


# ---- Python attributes of tensors


def test_attributes_of_tensors() -> None:
    def reads(x: Tensor) -> Tensor:
        return x * x.scale  # type: ignore[attr-defined, no-any-return]

    def labels(x: Tensor) -> Tensor:
        y = x * 2
        y.label = "y"  # type: ignore[attr-defined]
        return y

    def marks(x: Tensor) -> Tensor:
        x.seen = True  # type: ignore[attr-defined]
        return x * 2

    def inside(x: Tensor) -> Tensor:
        y = x * 2
        y.by = 3  # type: ignore[attr-defined]
        return y * y.by  # type: ignore[attr-defined, no-any-return]

    x = values(2)
    x.scale = 3  # type: ignore[attr-defined]
    assert told(aot.aot_function(reads, checking_nop)(x)) == told(values(2) * 3)
    with pytest.raises(AttributeError, match="scale"):
        aot.aot_function(reads, checking_nop)(values(2))
    for function in (labels, marks):
        with pytest.raises(UnsupportedOutput, match="is given a Python attribute"):
            aot.aot_function(function, checking_nop)(x)
    assert vars(x) == {"scale": 3}
    assert_agrees(inside, lambda: [leaf(2)])


# ---- tensors and modules of other classes


class _Named(Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [lambda x: (x * 2).as_subclass(_Named), lambda x: nn.Parameter(x * 2)],
    ids=["subclass", "parameter"],
)
def test_a_result_of_another_class_is_refused(make: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedOutput, match="come back as a plain tensor"):
        aot.aot_function(make, aot.nop)(values(3))


def test_tensors_of_another_class_within() -> None:
    assert_agrees(lambda x: ((x * 2).as_subclass(_Named) + 1).as_subclass(Tensor), lambda: [leaf(3)])
    assert_agrees(lambda x: x, lambda: [nn.Parameter(values(3))])


def test_a_script_module_is_refused() -> None:
    scripted: nn.Module = torch.jit.trace(nn.Linear(3, 2), values(3))  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedArgument, match="ScriptModule"):
        aot.aot_module(scripted, aot.nop)


# ---- compiled functions in other functions

_FACTOR = [2.0]


def _inner(x: Tensor) -> Tensor:
    return x.sin() * _FACTOR[0]


@pytest.mark.parametrize("first", [False, True], ids=["not called before", "called before"])
def test_a_compiled_function_in_another_one(first: bool) -> None:
    """It is traced as the original is, and guarded with it."""
    inner = aot.aot_function(_inner, checking_nop)
    if first:
        inner(leaf(3)), inner(values(3))
    outer = aot.aot_function(lambda x: inner(x) * x + inner(x.detach()), checking_nop)
    for factor in (2.0, 3.0):
        _FACTOR[0] = factor
        x, y = leaf(3), leaf(3)
        (result := outer(x)).sum().backward()
        (expected := _inner(y) * y + _inner(y.detach())).sum().backward()
        assert torch.equal(result, expected)
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["eager", "aotfuzz"])
def test_a_compiled_function_in_one_of_dynamos(backend: str) -> None:
    """Dynamo calls it, and looks into none of its code."""
    torch._dynamo.reset()
    inner, network = aot.aot_function(_inner, checking_nop), nn.Linear(3, 3)
    module = aot.aot_module(network, checking_nop)

    @torch.compile(backend=backend)
    def outer(x: Tensor) -> Tensor:
        return module(inner(x) + 1) * 2

    x, y = leaf(3), leaf(3)
    (result := outer(x)).sum().backward()
    (expected := network(_inner(y) + 1) * 2).sum().backward()
    assert torch.equal(result, expected)
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    assert (len(inner.specializations), len(module.compiled.specializations)) == (1, 1)
