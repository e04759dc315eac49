"""The wrapper subclass that arguments of a program may be: its text, which programs print and run.

A traceable wrapper subclass (`__tensor_flatten__`, `__tensor_unflatten__`) of one or two plain tensors, which
needs torch alone. What is done to it is done to each of its parts in turn, and what comes of that is such a
tensor again; `return_and_correct_aliasing` sees to it that a view shares memory with what it is a view of,
and that a write gives back what was written to. Autograd knows the whole, and not what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.ir import Argument, Storage, View
from fuzz.operators.layout import contiguous

VIAS = ("view", "detach", "parameter")
"""How a tensor may be taken from a root that is then wrapped: otherwise hidden ones would be the same."""

PARTS = ("view", "no_grad", "multi")
"""How a view may be taken of a root that has been wrapped."""

IMPORTS = (
    "from torch.utils._python_dispatch import return_and_correct_aliasing",
    "from torch.utils._pytree import tree_leaves, tree_map, tree_map_only",
)

WRAPPER = '''
class Wrapper(torch.Tensor):
    """One or two plain tensors. What is done to it is done to each of them, one after the other."""

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

WRAP = '''
class Wrap(torch.autograd.Function):
    """Plain tensors as a wrapper, with a history that leads to the first of them."""

    @staticmethod
    def forward(ctx, first, second=None):
        return Wrapper(first.detach(), second)

    @staticmethod
    def backward(ctx, gradient):
        return getattr(gradient, "first", gradient), None
'''.strip()


def is_whole(view: View, root: Storage) -> bool:
    """Whether an argument is the wrapper of a root itself, and not a view of that."""
    lies = view.size == root.size and view.stride == contiguous(root.size) and view.offset == 0
    return view.base == "wrapper" and view.via == "view" and lies


def definitions(arguments: Sequence[Argument]) -> list[str]:
    """The classes that it takes to make these arguments.

    >>> definitions([View(0, (2,), (1,), 0)])
    []
    """
    wrapped = [a for a in arguments if isinstance(a, View) and a.wrapped is not None]
    followed = any(view.via == "view" or view.base == "wrapper" for view in wrapped)
    return [WRAPPER, WRAP] if followed else [WRAPPER] if wrapped else []
