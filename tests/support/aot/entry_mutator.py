"""Changes to the structure of entries of the cache on disk, with hostile texts, operators and numbers."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from typing import Any

import torch

WORD = "PWNED"  # in every hostile text


CODE = f"open('{WORD}', 'w').write('x')"
TEXTS = (
    CODE,
    f"__import__('{WORD}')",
    f"x) or {CODE} or (0",
    f"x\n    {CODE}\n#",
    f"a={CODE}",
    f"as_strided(())if {CODE} else t0",
    f"aten.__dict__[({CODE}, torch.ops.aten.view, 'view')[2]].default",
    f"{WORD}:=0",
    f"lambda {WORD}: 0",
    f"'+{CODE}+'",
    f'"+{CODE}+"',
    f"\\' + {CODE} #",
    f"{{{CODE}}}",
    "__class__",
    "__globals__",
    "__builtins__",
    "__getattr__.__getattribute__",
    "torch",
    "self",
    "exec",
    "eval",
    "forward",
    "\ud800",
    "x" * 2000,
    "",
    "None",
    "0",
    "-1",
    "random.from",
    "call_by_name",
    "getitem",
    "copy_",
)
OPERATORS = (
    *("from_file", "copy_", "set_", "resize_", "_reshape_alias", "as_strided", "_to_copy", "empty", "fill_"),
    *(
        "add",
        "sub",
        "sin",
        "mul",
        "view",
        "t",
        "t_",
        "unsqueeze_",
        "detach_",
        "clone",
        "sum",
        "expand",
        "slice",
    ),
    *("_print", "_local_scalar_dense", "item", "set_data", "_nested_view_from_buffer", "native_batch_norm"),
    *("index", "select", "split", "unbind", "squeeze", "permute", "ones", "zeros_like", "rand", "bernoulli"),
    *(
        "as_strided_scatter",
        "_unsafe_view",
        "alias",
        "fbgemm_pack_gemm_matrix_fp16",
        "cat",
        "where",
        "requires_grad_",
    ),
)
OVERLOADS = (
    "default",
    "Tensor",
    "Scalar",
    "out",
    "int",
    "dim",
    "from",
    "source_Storage",
    "dim_IntList",
    "__class__",
)
NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 8, 64, 99, 10_000, 1 << 31, 1 << 62, 1 << 63, 1 << 80, -(1 << 63))
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    1.5,
    [],
    [[]],
    {},
    ["node", 0],
    ["node", 1],
    ["node", 99],
    ["node", -1],
    ["last", 0],
    ["tuple"],
    ["dict", ["__class__", 0]],
    ["set", 1],
    ["slice", None, None, None],
    ["ellipsis"],
    ["device", "meta"],
    ["device", "cuda:0"],
    ["dtype", "float64"],
    ["dtype", "load"],
    ["float", "nan"],
    ["float", "0x1p9999"],
    ["op", "aten::from_file", "default"],
    ["op", "aten::fill_", "Scalar"],
    ["own", "eval"],
    ["list", ["node", 0]],
    ["ArgumentRoot", [0, ["data"]]],
    ["WrapperRoot", [None, None, []]],
    ["Reshape", [["aten::set_", "source_Storage"], ["tuple"], [], "GRAD", False, []]],
)


class Mutator:
    """Changes the data of an entry.

    Args:
        data: what is in the entry; it is changed.
        others: data of other entries, of which parts are taken.
    """

    def __init__(self, rng: random.Random, data: Any, others: list[Any]) -> None:
        self.rng = rng
        self.data = data
        self.others = others

    def mutate(self) -> list[str]:
        """Make one change, or a few; what they were."""
        ways = (
            self.text,
            self.number,
            self.other,
            self.swap,
            self.drop,
            self.repeat,
            self.operator,
            self.graft,
            self.alike,
            self.near,
            self.call,
        )
        count = self.rng.choice((1, 1, 1, 2, 3))
        return [way.__name__ for way in self.rng.choices(ways, k=count) if way()]

    def _places(self, kind: Callable[[Any], bool]) -> list[tuple[list[Any], int]]:
        found: list[tuple[list[Any], int]] = []
        stack = [self.data]
        while stack:
            inner = stack.pop()
            for i, one in enumerate(inner):
                if kind(one):
                    found.append((inner, i))
                if isinstance(one, list):
                    stack.append(one)
        return found

    def _replace(self, kind: Callable[[Any], bool], new: Callable[[Any], Any]) -> bool:
        places = self._places(kind)
        if not places:
            return False
        inner, i = self.rng.choice(places)
        inner[i] = new(inner[i])
        return True

    def text(self) -> bool:
        """A text becomes a hostile one, or another one of the entry."""
        is_text: Callable[[Any], bool] = lambda one: isinstance(one, str)  # noqa: E731
        own = [inner[i] for inner, i in self._places(is_text)]
        return self._replace(is_text, lambda _: self.rng.choice(self.rng.choice((TEXTS, own))))

    def number(self) -> bool:
        def changed(one: int) -> int:
            return self.rng.choice((*NUMBERS, one + 1, one - 1, -one, one ^ 1, one * 2))

        return self._replace(lambda one: type(one) is int, changed)

    def other(self) -> bool:
        return self._replace(lambda one: True, lambda _: copy.deepcopy(self.rng.choice(OTHERS)))

    def swap(self) -> bool:
        """Two parts change places."""
        places = self._places(lambda one: True)
        (a, i), (b, j) = self.rng.sample(places, 2)
        one, two = copy.deepcopy(a[i]), copy.deepcopy(b[j])  # (One may be in the other.)
        a[i], b[j] = two, one
        return True

    def _list(self) -> list[Any] | None:
        places = self._places(lambda one: isinstance(one, list) and bool(one))
        if not places:
            return None
        inner, i = self.rng.choice(places)
        chosen: list[Any] = inner[i]
        return chosen

    def drop(self) -> bool:
        inner = self._list()
        if inner:
            del inner[self.rng.randrange(len(inner))]
        return inner is not None

    def repeat(self) -> bool:
        inner = self._list()
        if inner:
            inner.insert(self.rng.randrange(len(inner) + 1), copy.deepcopy(self.rng.choice(inner)))
        return inner is not None

    def operator(self) -> bool:
        """An operator becomes another one."""

        def new(_: Any) -> Any:
            name = self.rng.choice(OPERATORS)
            packet = getattr(torch.ops.aten, name, None)
            overloads = packet.overloads() if packet is not None and self.rng.random() < 0.8 else OVERLOADS
            return [
                f"{self.rng.choice(('aten', 'aten', 'aten', 'prims', 'torch'))}::{name}",
                self.rng.choice(overloads),
            ]

        return self._replace(is_operator, new)

    def alike(self) -> bool:
        """An operator becomes one with the same arguments."""

        def new(one: Any) -> Any:
            return self.rng.choice(alike(*one) or [one])

        return self._replace(is_operator, new)

    def near(self) -> bool:
        """A number becomes one of about the same size: an axis, a node, an output."""
        return self._replace(lambda one: type(one) is int, lambda one: max(0, one + self.rng.choice((-1, 1))))

    def graft(self) -> bool:
        """A part becomes one of another entry."""
        theirs = Mutator(self.rng, self.rng.choice(self.others), [])._places(lambda one: True)
        inner, i = self.rng.choice(theirs)
        return self._replace(lambda one: type(one) is type(inner[i]), lambda _: copy.deepcopy(inner[i]))

    def call(self) -> bool:
        """A call is added to a graph."""
        if not isinstance(self.data, list) or len(self.data) < 3:
            return False
        try:
            backwards = [one for one in self.data[2] if one is not None]
            graph = self.rng.choice([self.data[1], *backwards])
            targets, nodes = graph[1], graph[5]
            name, overload = self.rng.choice(OPERATORS), self.rng.choice(OVERLOADS)
            own = self.rng.choice(("call_by_name", "call_with_grad", "call_on_clones", "getitem"))
            targets.append(self.rng.choice(([f"aten::{name}", overload], own)))
            given = [
                self.rng.choice((["node", self.rng.randrange(len(nodes))], *OTHERS, *TEXTS[:6], 1, 2))
                for _ in range(3)
            ]
            args = copy.deepcopy(given[: self.rng.randrange(4)])
            kwargs = [[self.rng.choice(("dtype", "out", "dim", CODE)), 1]] if self.rng.random() < 0.2 else []
            node = [
                "call_function",
                f"added_{self.rng.randrange(99)}",
                len(targets) - 1,
                args,
                kwargs,
                nodes[0][5],
                None,
            ]
            nodes.insert(self.rng.choice((len(nodes) - 1, len(nodes) // 2)), node)
        except (TypeError, IndexError, AttributeError, ValueError):
            return False  # another change has been here
        return True


@functools.cache
def alike(name: str, overload: str) -> list[list[str]]:
    """The operators of ATen that take the same arguments and give the same results."""
    try:
        op = getattr(getattr(torch.ops.aten, name.partition("::")[2]), overload)
        wanted = signature(op)
    except (AttributeError, TypeError):
        return []
    return [[f"aten::{p}", o] for p, o, signature in signatures() if signature == wanted]


@functools.cache
def signatures() -> list[tuple[str, str, str]]:
    found = []
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        packet, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::") and not packet.startswith("__"):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if op is not None:
                found.append((packet, overload or "default", signature(op)))
    return found


def signature(op: Any) -> str:
    schema = op._schema
    kinds = [f"{one.type} {one.kwarg_only} {one.is_write}" for one in schema.arguments]
    return f"{kinds} {[str(one.type) for one in schema.returns]}"


def is_operator(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    return is_pair and "::" in value[0]
