"""The wrapper subclass of programs: its text, and the rows that make one and take one apart.

A traceable wrapper subclass (`__tensor_flatten__`, `__tensor_unflatten__`) of one or two tensors, plain ones
or such, which needs torch alone. What is done to it is done to each of its parts in turn, and what comes of
that is such a tensor again; `return_and_correct_aliasing` sees to it that a view shares memory with what it
is a view of, and that a write gives back what was written to. Autograd knows the whole, and not what it is
made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.row import Aliasing, Attributes, Kind, Meta, Operator, Result
from fuzz.operators.views import view_row

IMPORTS = (
    "from torch.utils._python_dispatch import return_and_correct_aliasing",
    "from torch.utils._pytree import tree_leaves, tree_map, tree_map_only",
)

SUBCLASS_SOURCE = '''
class Wrapper(torch.Tensor):
    """One or two tensors. What is done to it is done to each of them, one after the other."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, first, second=None):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            first.shape,
            strides=first.stride(),
            storage_offset=first.storage_offset(),
            dtype=first.dtype,
            device=first.device,
        )
        made.first, made.second = first, second
        return made

    def __tensor_flatten__(self):
        return ["first"] if self.second is None else ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Wrapper(**parts)

    def __repr__(self):
        return f"Wrapper({self.first}, {self.second})"

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result

        def on_parts(second):
            def part(one):
                return one.second if second and one.second is not None else one.first

            plain_args, plain_kwargs = tree_map_only(Wrapper, part, (args, kwargs))
            return operator(*plain_args, **plain_kwargs)

        def whole(*parts):
            return Wrapper(*parts) if isinstance(parts[0], torch.Tensor) else parts[0]

        wrappers = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Wrapper)]
        results = [on_parts(second=False)]
        if any(one.second is not None for one in wrappers):
            results.append(on_parts(second=True))
        result = tree_map(whole, *results)
        return return_and_correct_aliasing(operator, args, kwargs, result)
'''.strip()

WRAP_SOURCE = '''
class Wrap(torch.autograd.Function):
    """Plain tensors as a wrapper, with a history that leads to the first of them."""

    @staticmethod
    def forward(ctx, first, second=None, nested=False):
        first = first.detach()
        return Wrapper(Wrapper(first) if nested else first, second)

    @staticmethod
    def backward(ctx, gradient):
        while isinstance(gradient, Wrapper):
            gradient = gradient.first
        return gradient, None, None
'''.strip()

UNWRAP = '''
class Unwrap(torch.autograd.Function):
    """The first plain tensor that a wrapper is made of, with a history that leads to the wrapper."""

    @staticmethod
    def forward(ctx, whole):
        ctx.two, ctx.nested = whole.second is not None, isinstance(whole.first, Wrapper)
        first = whole.first
        while isinstance(first, Wrapper):
            first = first.first
        return first.detach()

    @staticmethod
    def backward(ctx, gradient):
        first = Wrapper(gradient) if ctx.nested else gradient
        return Wrapper(first, torch.zeros_like(gradient)) if ctx.two else Wrapper(first)
'''.strip()


def _row(name: str, source: str, link: Aliasing, defines: str) -> Operator:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        return (Result(metas[0], link),)

    return view_row(name, source, rule, kind=Kind.WRAPPER, defines=defines)


ROWS = (
    _row("wrap", "Wrap.apply({0})", Aliasing.WRAPPED, WRAP_SOURCE),
    _row("wrap_twice", "Wrap.apply({0}, {0}.detach())", Aliasing.WRAPPED, WRAP_SOURCE),
    _row("unwrap", "Unwrap.apply({0})", Aliasing.PART, UNWRAP),
)
