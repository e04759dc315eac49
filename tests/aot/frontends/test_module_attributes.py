"""`aot_module` of modules that keep tensors in attributes which are neither parameters nor buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from aot.guards.module_attributes import attributes_read_by_forward
from tests.support.agreement import checking_nop, leaf, values


class Scaled(nn.Module):
    """Reads them from everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: Any = nn.Linear(3, 3)
        self.linear.offset = torch.full((3,), 0.5)
        self.scale = torch.arange(3.0)
        self.tables = [torch.ones(3), torch.full((3,), 2.0)]
        self.named = {"shift": torch.full((3,), 3.0)}
        self.notes = torch.eye(3).to_sparse()  # which no code names, and which could be no argument

    @property
    def doubled(self) -> Tensor:
        return self.scale * 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.doubled + self.linear.offset
        return y * self.tables[1] + self.named["shift"]


class Recurrent(nn.Module):
    """Puts its results into them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)
        self.hidden: Tensor | None = torch.zeros(3)
        self.seen = [torch.zeros(3), torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.cell(x) + self.hidden)
        self.hidden = hidden.detach()
        self.seen[0] = x
        self.seen[1].add_(1)
        return hidden


class Weighted(nn.Module):
    """Has one that requires grad, and runs with it again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [torch.ones(3, requires_grad=True)]

    def forward(self, x: Tensor) -> Any:
        return checkpoint(lambda y: (y * self.weights[0]).sin().exp(), x, use_reentrant=False)


class Aliased(nn.Module):
    """Has a view of its buffer."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(4))
        self.last = self.window[3:]

    def forward(self, x: Tensor) -> Tensor:
        self.window.mul_(2)
        self.last.copy_(x.detach().sum())
        return self.window * x


def held(module: nn.Module) -> list[Tensor]:
    kept = (vars(one).values() for one in module.modules())
    lists = [value for values in kept for value in values]
    flat = [one for value in lists for one in (value if isinstance(value, list) else [value])]
    return [one for one in flat if isinstance(one, Tensor) and one.layout is torch.strided]


@pytest.mark.parametrize("make", [Scaled, Recurrent, Weighted, Aliased])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attributes_are_read_and_written_as_in_eager(make: Callable[[], nn.Module], dynamic: bool) -> None:
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    ours = make()
    compiled = aot.aot_module(ours, checking_nop, dynamic=dynamic)
    size = 4 if make is Aliased else 3
    for step in range(3):
        pairs = []
        for call in (eager, compiled):
            x = leaf(size)
            out = call(x * (step + 1))
            out.sum().backward()
            pairs.append((out.detach(), x.grad))
        for expected, found in zip(*pairs, strict=True):
            assert torch.equal(found, expected)
        for expected, found in zip(held(eager), held(ours), strict=True):
            assert torch.equal(found, expected)
            assert found.is_leaf == expected.is_leaf
            if expected.is_leaf and expected.grad is not None:
                assert torch.equal(found.grad, expected.grad)
        for expected, found in zip(eager.state_dict().values(), ours.state_dict().values(), strict=True):
            assert torch.equal(found, expected)
    # (That some hold gradients, or are no leaves any more, is another kind of call.)
    assert len(compiled.compiled.specializations) <= 2


def test_an_attribute_may_change_between_calls() -> None:
    module = Scaled()
    compiled = aot.aot_module(module, checking_nop)
    for change in (
        lambda: module.scale.add_(1),
        lambda: setattr(module, "scale", values(3)),
        lambda: setattr(module, "scale", values(3).double().float()[None]),  # another shape
        lambda: module.tables.__setitem__(1, values(3)),
        lambda: module.tables.insert(0, values(3)),
        lambda: setattr(module.linear, "offset", 2.0),
        lambda: module.named.update(shift=values(3)),
    ):
        for _ in range(2):
            assert torch.equal(compiled(values(2, 3)), module(values(2, 3)))
        change()
        assert torch.equal(compiled(values(2, 3)), module(values(2, 3)))


def test_what_is_put_into_an_attribute_is_the_result_itself() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.zeros(3)

        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return self.last

    module = Keeping()
    compiled = aot.aot_module(module, checking_nop)
    for _ in range(3):
        out = compiled(leaf(3))
        assert out is module.last
        assert out.requires_grad


def test_a_list_may_be_another_one_between_calls() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = [torch.zeros(3)]

        def forward(self, x: Tensor) -> Tensor:
            self.kept[0] = self.kept[0] + x
            return x * 2

    module = Listed()
    compiled = aot.aot_module(module, checking_nop)
    first = module.kept
    for count in range(1, 4):
        compiled(values(3))
        assert torch.equal(first[0], values(3) * count)
    module.kept = [torch.zeros(3)]
    compiled(values(3))
    assert torch.equal(module.kept[0], values(3))
    assert torch.equal(first[0], values(3) * 3)


def test_an_attribute_that_is_no_tensor_yet_is_refused_and_left_as_it_was() -> None:
    module = Recurrent()
    module.hidden = None
    module.forward = lambda x: setattr(module, "hidden", x * 2)  # type: ignore[method-assign]
    compiled = aot.aot_module(module, checking_nop)
    with pytest.raises(errors.ClosureMutation, match="call it once before it is compiled"):
        compiled(values(3))
    assert module.hidden is None
    module(values(3))
    compiled(values(3) + 1)
    assert torch.equal(module.hidden, values(3) * 2 + 2)


class Helped(nn.Module):
    """Names them in what is called from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()
        self.inner.register_forward_pre_hook(self._before)
        self.shift = torch.ones(3)
        self.reported = [torch.ones(3).to_sparse(), torch.ones(2)]
        self.factor = torch.full((3,), 4.0)
        self.power = torch.full((3,), 3.0)

    def _before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] + self.shift,)

    @property
    def exponent(self) -> Tensor:
        return self.power

    def report(self) -> list[Tensor]:
        return self.reported

    @staticmethod
    def scale_of(module: Any) -> Tensor:
        factor: Tensor = module.factor
        return factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.scale_of(self)
        return out**self.exponent


def test_what_is_named_on_the_way_counts_and_nothing_else() -> None:
    module = Helped()
    named = {name for _, _, name in attributes_read_by_forward(module)}
    assert named >= {"shift", "factor", "power", "scale", "tables", "named", "offset"}
    assert named.isdisjoint({"reported", "notes", "_parameters", "training"})
    compiled = aot.aot_module(module, checking_nop)
    for _ in range(2):
        assert torch.equal(compiled(values(2, 3)), module(values(2, 3)))
        module.shift.add_(1)
        module.factor = values(3)
    assert len(compiled.compiled.specializations) == 1


def test_a_list_that_grows_is_refused_and_left_as_it_was() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x * 2)
            return x

    module = Growing()
    compiled = aot.aot_module(module, checking_nop)
    with pytest.raises(errors.ClosureMutation, match="or return them"):
        compiled(values(3))
    assert module.seen == []


class Hooked(nn.Module):
    """Its backward puts a gradient into a place."""

    last: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.kept = [torch.zeros(3)]
        if kind == "buffer":
            self.register_buffer("last", torch.zeros(3))
        elif kind == "attribute":
            self.last = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2

        def hook(gradient: Tensor) -> Tensor:
            if self.kind == "list":
                self.kept[0] = gradient * 3
            else:
                self.last = gradient * 3
            return gradient

        doubled.register_hook(hook)
        return doubled.sin()


@pytest.mark.parametrize("kind", ["buffer", "attribute", "nothing", "list"])
def test_a_backward_that_puts_a_tensor_into_a_place_is_refused(kind: str) -> None:
    module = Hooked(kind)
    before = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
    with pytest.raises(errors.Unsupported, match=r"puts another tensor into|stored a tensor somewhere else"):
        aot.aot_module(module, checking_nop)(leaf(3)).sum().backward()
    assert torch.equal(module.kept[0], torch.zeros(3))
    assert all(vars(module)[name] is value for name, value in before.items())


def test_a_module_that_raises_keeps_what_it_had() -> None:
    class Raising(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            self.seen.clear()
            self.hidden = None
            raise LookupError("in the middle")

    module = Raising()
    before = held(module)
    with pytest.raises(LookupError, match="in the middle"):
        aot.aot_module(module, checking_nop)(values(3))
    assert all(now is one for now, one in zip(held(module), before, strict=True))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 2.0
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.factor


def test_attributes_outlast_a_backward_whose_python_runs_again() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(3))
            self.scale = values(3, start=4)

        def forward(self) -> tuple[Tensor, Tensor]:
            size = self.scale.shape  # which is all that it reads of it
            results = torch._foreach_neg([self.weight, _Doubled.apply(self.weight).view(size)])
            return results[0], results[1]

    net = Net()
    compiled = aot.aot_module(net, aot.nop)
    for start in (4, 9):
        net.scale = scale = values(3, start=start)
        told = []
        for run in (net, compiled):
            results = run()
            told.append([*results])
            for chosen in (results, results[:1], results[1:]):
                tangents = [torch.ones(3) for _ in chosen]
                told[-1] += torch.autograd.grad(chosen, net.weight, tangents, retain_graph=True)
                assert net.scale is scale
        torch.testing.assert_close(told[1], told[0])
