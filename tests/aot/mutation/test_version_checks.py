"""Writes between forward and backward: an error exactly where eager has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import aot
from tests.support.agreement import assert_agrees, both, leaf, listed, non_leaf, values

pytestmark = pytest.mark.clause("versions")


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns, or the type and the beginning of what it raises."""
    try:
        return action()
    except RuntimeError as error:
        return type(error).__name__, " ".join(str(error).split()[:16])


class TestModifiedBetween:
    """Writes between forward and backward: an error exactly where eager has one."""

    def check(self, f: Callable[..., Any], write: Callable[..., Any], *makes: Callable[[], Tensor]) -> Any:
        seen = []
        for function in both(f):
            arguments = [make() for make in makes]
            # Gradients of the arguments as they were passed, whatever becomes of them in the call.
            wanted = [torch.autograd.graph.get_gradient_edge(a) for a in arguments if a.requires_grad]
            outputs = function(*arguments)
            with torch.no_grad():
                write(arguments, outputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            results = []
            for output in outputs:

                def differentiate(output: Tensor = output, wanted: list[Any] = wanted) -> Any:
                    grads = torch.autograd.grad(output.sum(), wanted, retain_graph=True, allow_unused=True)
                    return listed(grads)

                results.append(outcome(differentiate))
            seen.append(results)
        eager, compiled = seen
        assert [_kind(r) for r in eager] == [_kind(r) for r in compiled]
        for ours, theirs in zip(compiled, eager, strict=True):
            if not _kind(theirs):
                assert ours == theirs
        return [_kind(r) for r in eager]

    def test_an_argument_that_backward_needs(self) -> None:
        assert self.check(lambda x: x * x, lambda a, o: a[0].mul_(2), lambda: leaf(3)) == [True]

    def test_an_argument_that_backward_does_not_need(self) -> None:
        assert self.check(lambda x: x * 2, lambda a, o: a[0].mul_(2), lambda: leaf(3)) == [False]

    @pytest.mark.parametrize(
        "f, output, raises",
        [
            (lambda x: x.sin(), None, True),
            (lambda x: x * 2, None, False),
            (lambda x: x.view(-1).sin(), None, False),  # the view is kept
            (lambda x: (x.exp(), x.sin()), None, True),  # of the second alone
            (lambda x: x.exp(), None, False),
            (lambda x: (v := x * 1, v * v), 0, True),
            (lambda x: (v := x.exp(), v * 2), 0, False),  # a result that its own node keeps
        ],
    )
    def test_what_backward_needs_is_detached(
        self, f: Callable[..., Any], output: int | None, raises: bool
    ) -> None:
        said = []
        for function in both(f):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            y = x * 1
            results = function(y)
            results = results if isinstance(results, tuple) else (results,)
            (y if output is None else results[output]).detach_()
            said.append(outcome(lambda x=x, last=results[-1]: listed(torch.autograd.grad(last.sum(), x))))
        assert said[0] == said[1]
        assert ("detached in-place" in str(said[0])) == raises

    def test_the_argument_that_the_other_needs(self) -> None:
        def f(x: Tensor, y: Tensor) -> Tensor:
            return x * y

        assert self.check(f, lambda a, o: a[1].mul_(2), lambda: leaf(3), lambda: values(3)) == [True]
        assert self.check(f, lambda a, o: a[0].mul_(2), lambda: leaf(3), lambda: values(3)) == [False]

    def test_an_output_that_backward_needs(self) -> None:
        assert self.check(torch.exp, lambda a, o: o.mul_(2), lambda: leaf(3)) == [True]

    def test_an_output_that_backward_does_not_need(self) -> None:
        assert self.check(torch.sin, lambda a, o: o.mul_(2), lambda: leaf(3)) == [False]

    def test_an_argument_that_one_of_two_outputs_needs(self) -> None:
        def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x * y, y * 2

        seen = self.check(f, lambda a, o: a[0].mul_(2), lambda: leaf(3), lambda: leaf(3))
        assert seen == [True, False]

    def test_an_output_that_another_output_needs(self) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            return y, y * y

        assert self.check(f, lambda a, o: o[0].mul_(2), lambda: leaf(3)) == [False, True]

    def test_a_view_of_an_output_that_backward_needs(self) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.exp()
            return y[1:], y * 3

        seen = self.check(f, lambda a, o: o[0].mul_(2), lambda: leaf(3))
        assert seen == [True, True]

    def test_an_alias_of_an_argument(self) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            return x.detach(), x * x

        seen = self.check(f, lambda a, o: a[0].detach().mul_(2), lambda: leaf(3))
        assert seen[-1:] == [True]

    def test_data_of_an_argument(self) -> None:
        assert self.check(lambda x: x * 2, lambda a, o: a[0].data.mul_(2), lambda: leaf(3)) == [False]

    def test_a_mutated_argument_that_backward_needs(self) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            return x * x

        assert self.check(f, lambda a, o: a[0].mul_(2), lambda: non_leaf(3)) == [True]

    def test_a_mutated_argument_whose_old_value_backward_needs(self) -> None:
        def f(x: Tensor) -> Tensor:
            y = x.sin()
            with torch.no_grad():
                x.mul_(2)
            return y

        assert self.check(f, lambda a, o: None, lambda: leaf(3)) == [True]

    def test_an_argument_that_is_needed_but_for_zeros(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x.relu() * 0

        assert self.check(f, lambda a, o: a[0].mul_(2), lambda: leaf(3)) == [False]

    def test_nothing_is_written(self) -> None:
        assert self.check(lambda x: x * x, lambda a, o: None, lambda: leaf(3)) == [False]

    def test_what_a_checkpoint_was_given(self) -> None:
        """It keeps that itself, and takes it from autograd, which checks it."""

        def f(x: Tensor, y: Tensor) -> Tensor:
            return checkpoint(torch.mul, x, y, use_reentrant=False)

        makes = (lambda: leaf(3), lambda: values(3))
        assert self.check(f, lambda a, o: a[1].mul_(2), *makes) == [True]

        def twice(z: Tensor, x: Tensor) -> Tensor:
            return (z * 2) * x.sin()

        def g(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            return y, checkpoint(twice, z, x, use_reentrant=False)

        def aliases() -> list[Tensor]:
            y = values(2)
            return [values(2, 2), y, y[1:].detach().requires_grad_()]

        assert_agrees(g, aliases)

    def test_what_a_checkpoint_was_given_and_does_not_read_again(self) -> None:
        """It takes all of it before it runs anything again, and stops as soon as it has what was saved."""

        def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x.sin(), x.detach() + y

        def f(x: Tensor, y: Tensor) -> Tensor:
            result: Tensor = checkpoint(both, x, y, use_reentrant=False)[0]
            return result

        def inside(x: Tensor, y: Tensor) -> Any:
            return checkpoint(lambda x, y: (f(x * 2, y) * 2).exp(), x, y, use_reentrant=False)

        def not_differentiated(x: Tensor, y: Tensor) -> Tensor:
            return f(x, y).detach() * x

        makes = (lambda: leaf(3), lambda: values(3))
        assert self.check(f, lambda a, o: a[1].mul_(2), *makes) == [True]
        assert self.check(inside, lambda a, o: a[1].mul_(2), *makes) == [True]
        assert self.check(not_differentiated, lambda a, o: a[1].mul_(2), *makes) == [False]

    @pytest.mark.parametrize("picked", [0, 1, 2])
    @pytest.mark.parametrize("of", ["list", "unused list", "inner checkpoint", "view", "nothing"])
    def test_what_a_checkpoint_was_given_of_which_nodes_do_not_tell(self, of: str, picked: int) -> None:
        """Those of operations on lists, and of writes to views, say nothing of what was packed."""

        def listed(x: Tensor) -> tuple[Tensor, ...]:
            first, second = torch._foreach_exp([x, x])
            return first, second, first.sin()

        def added(x: Tensor) -> tuple[Tensor, ...]:
            return (*torch._foreach_add([x, x], 2.0), x.sin())

        def within(x: Tensor) -> tuple[Tensor, ...]:
            first, second = checkpoint(lambda x: torch._foreach_exp([x, x]), x, use_reentrant=False)
            return first, second, x.sin()

        def written(x: Tensor) -> tuple[Tensor, ...]:
            y = x * 1
            y[0].exp_()
            return y, x.sin(), y.cos()

        def doubled(x: Tensor) -> tuple[Tensor, ...]:
            y = x * 1
            y[0].mul_(2)
            return y, x.sin(), y.cos()

        part = {
            "list": listed,
            "unused list": added,
            "inner checkpoint": within,
            "view": written,
            "nothing": doubled,
        }[of]

        def f(x: Tensor) -> Tensor:
            result: Tensor = checkpoint(part, x, use_reentrant=False)[picked]
            return result

        def several(x: Tensor) -> Any:
            return checkpoint(part, x, use_reentrant=False)

        def raises(function: Callable[..., Any], pick: bool) -> bool:
            x = leaf(3, 2)
            result = function(x)[picked] if pick else function(x)
            with torch.no_grad():
                x.mul_(2)
            try:
                result.sum().backward()
            except RuntimeError:
                return True
            return False

        for function, pick in ((f, False), (several, True)):
            eager, compiled = both(function)
            assert raises(eager, pick) == raises(compiled, pick) == ((of, picked) != ("nothing", 0))

    @pytest.mark.parametrize("between", ["checkpoint", "other checkpoint", "hooks", "nothing"])
    @pytest.mark.parametrize("inside", [True, False])
    def test_whose_hooks_there_were_for_a_node(self, inside: bool, between: str) -> None:
        """What makes no node, under others' hooks, says nothing of the node that was made before."""

        def product(x: Tensor, c: Tensor) -> Tensor:
            return torch._foreach_mul([x], [c])[0]

        def f(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            y = checkpoint(product, x, c, use_reentrant=False) if inside else torch._foreach_add([c], [c])[0]
            if between == "checkpoint":
                return y, checkpoint(product, x, x, use_reentrant=False)
            if between == "other checkpoint":
                return y, checkpoint(lambda x: x * 2, x, use_reentrant=False)
            if between == "hooks":
                with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                    return y, x * 2
            return y, x * 2

        makes = (lambda: values(3), lambda: leaf(3))
        assert self.check(f, lambda a, o: a[1].mul_(2), *makes) == [True, False]

    def test_a_checkpoint_that_runs_again_within_the_function(self) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            made: list[Tensor] = []

            def part(x: Tensor) -> Tensor:
                (y,) = torch._foreach_exp([x])
                made.append(y)
                return y.sin()

            z: Tensor = checkpoint(part, x, use_reentrant=False, early_stop=False)
            (_,) = torch.autograd.grad(z.sum(), x, retain_graph=True)
            return z, made[-1]

        for function in both(f):
            x = leaf(3)
            results = function(x)
            (gradient,) = torch.autograd.grad(results[1].sum(), x)
            torch.testing.assert_close(gradient, x.exp())

    def test_what_a_checkpoint_was_given_that_leads_nowhere(self) -> None:
        """A view that was taken under no_grad of what requires grad says that it does."""

        def f(x: Tensor) -> Any:
            return checkpoint(torch.exp, x, use_reentrant=False)

        def g(x: Tensor) -> Any:
            return f(x.sgn())

        for function in (*both(f), *both(g)):
            with torch.no_grad():
                x = leaf(3).view(3)
            result = function(x).sum()
            result.backward(retain_graph=True)
            with torch.no_grad():
                x.mul_(2)
            with pytest.raises(RuntimeError):
                result.backward()

    @pytest.mark.parametrize("unpacks", [True, False])
    def test_what_a_custom_function_keeps_and_has_no_use_for(self, unpacks: bool) -> None:
        """It unpacks all at once, or nothing; autograd checks what it unpacks."""

        class Total(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
                ctx.save_for_backward(x, y)
                ctx.shape = x.shape
                return x.sum()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                shape = ctx.saved_tensors[0].shape if unpacks else ctx.shape
                return gradient.expand(shape), None

        def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = y.sin()
            return Total.apply(x * 2, z), z

        def g(x: Tensor, y: Tensor) -> Tensor:
            return Total.apply(x, y)

        makes = (lambda: leaf(3), lambda: values(3))
        assert self.check(f, lambda a, o: o[1].mul_(2), *makes)[0] is unpacks
        assert self.check(g, lambda a, o: a[1].mul_(2), *makes) == [unpacks]


def _kind(result: Any) -> bool:
    return isinstance(result, tuple) and "modified by an inplace" in result[1]


def test_the_error_names_the_cause_as_eager_does() -> None:
    for function in both(torch.exp):
        y = function(leaf(3))
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match=r"\[torch.FloatTensor \[3\]\].* is at version 1; expected"):
            y.sum().backward()


def test_a_formula_that_gives_nothing_still_checks_what_it_keeps() -> None:
    """The gradient of a norm of order 0 is nothing, and its backward wants its result unchanged."""
    assert_agrees(lambda x: torch.linalg.vector_norm(x, 0), lambda: [leaf(3)])


class Weighed(torch.autograd.Function):
    """Keeps its weight, and gives it no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (weight,) = ctx.saved_tensors
        return gradient * weight if ctx.needs_input_grad[0] else None, None


def _of_a_written_argument(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    return x, Weighed.apply(y, x)


def _of_a_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    weight = x * 2
    return weight, Weighed.apply(y, weight)


def _of_an_argument(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 2, Weighed.apply(y, x)


@pytest.mark.parametrize("written", ["argument", "result", "nothing"])
@pytest.mark.parametrize("f", [_of_a_written_argument, _of_a_result, _of_an_argument])
def test_a_function_that_gives_nothing_still_checks_what_it_keeps(
    f: Callable[..., tuple[Tensor, ...]], written: str
) -> None:
    """Of a result, of an argument that the call has written, and of one that it has not."""
    seen = []
    for function in both(f):
        x = non_leaf(3)
        before = torch.autograd.graph.get_gradient_edge(x)
        results = function(x, values(3, start=3))
        with torch.no_grad():
            if written != "nothing":
                (x if written == "argument" else results[0]).mul_(2)
        loss = results[1].sum()
        seen.append(outcome(lambda: torch.autograd.grad(loss, before, allow_unused=True)[0]))  # noqa: B023
    assert seen[0] == seen[1]
    kept = "argument" if f is _of_an_argument else "result"
    same = f is _of_a_written_argument and written == "argument"
    assert _kind(seen[0]) == (written == kept or same)


@pytest.mark.parametrize("operation", [torch.max, torch.prod, torch.sin], ids=["max", "prod", "sin"])
def test_a_backward_that_leads_nowhere_still_checks_what_it_keeps(operation: Callable[..., Tensor]) -> None:
    """A view of a leaf that was taken under no_grad says that it requires grad."""
    for function in both(operation):
        x = leaf(3)
        with torch.no_grad():
            view = x[1:]
        y = function(view).sum()
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match=r"modified by an inplace|modified inplace"):
            y.backward()


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda v: v.chunk(2)[0],
    "split": lambda v: v.split(2)[1],
    "unbind": lambda v: v.unbind()[1],
    "chunk of a view": lambda v: v.view(1, -1).chunk(2, 1)[0],
    "slice of a chunk": lambda v: v.chunk(2)[0][:2],
}


@pytest.mark.parametrize("lazily", [False, True], ids=["plain", "negated"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_written_view_that_shows_more_than_its_parent(part: str, lazily: bool) -> None:
    """Autograd lets no gradient of what `as_strided` shows besides past a lazily negated parent."""

    def f(a: Tensor) -> Tensor:
        v = a.as_strided((5,), (1,), 0)
        v.mul_(2)
        return PARTS[part](v)

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = torch.arange(5.0).requires_grad_()
        every_other = (leaf * 1).as_strided((3,), (2,), 0)
        argument = torch._neg_view(every_other) if lazily else every_other
        result = function(argument)
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            result.mul_(2)
        return torch.autograd.grad(result.sum() + argument.sum(), leaf)[0]

    assert torch.equal(gradient(aot.aot_function(f, aot.nop)), gradient(f))
