"""Why a call was compiled, and not answered by what had been compiled before.

In: the key of the call, and those of the specializations. Out: what is not alike, in words; of the one that
is most alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from aot.guards.guard import Guards
from aot.tensors.symbolic_sizes import ShapeGuards

_FACTS = (
    "type",
    "shape",
    "strides",
    "storage offset",
    "conj bit",
    "neg bit",
    "dtype",
    "device",
    "requires_grad",
    "is_leaf",
    "having a gradient",
    "is_inference()",
    "storage, among those of the arguments",
    "base, among those of the arguments",
)
_AMBIENT = (
    "grad mode",
    "inference mode, default dtype or device, deterministic mode, autocast, torch function modes, or Python "
    "attributes of tensors",
)

_LOOKED_AT = 16  # so that what a compile takes does not grow with how many there were

Key = tuple[object, tuple[object, ...], tuple[object, ...]]
Before = tuple[Key, Guards, ShapeGuards | None]


def recompile_reason(
    key: Key, leaves: int, tensors: Sequence[Tensor], numbers: Sequence[int], before: Sequence[Before]
) -> str:
    """What keeps the specializations `before`, or the last of them, from answering a call; empty where there
    are none.

    Args:
        key: of the call: the tree of its arguments, these, and what is around it.
        leaves: how many leaves its arguments have.
        tensors, numbers: those of them for which symbols may stand.
        before: the key of each, what it rests on, and what it assumes of sizes, if it answers more than one.

    Example:
        >>> compiled = aot.aot_function(torch.sin, aot.nop)
        >>> _ = compiled(torch.ones(2)), compiled(torch.ones(3))
        >>> compiled.specializations[1].why
        'argument 0: shape is (3,) and not (2,)'
    """
    found = [
        tuple(_recompile_differences(key, leaves, tensors, numbers, one)) for one in before[-_LOOKED_AT:]
    ]
    nearest = min(found, key=len, default=())
    return "; ".join(nearest)


def _recompile_differences(
    key: Key, leaves: int, tensors: Sequence[Tensor], numbers: Sequence[int], before: Before
) -> Iterator[str]:
    (tree, given, ambient), (other_tree, other, other_ambient) = key, before[0]
    if tree != other_tree:
        yield "the arguments have another structure"
        return
    now_and_then = (ambient[0], ambient[1:]), (other_ambient[0], other_ambient[1:])
    for name, now, then in zip(_AMBIENT, *now_and_then, strict=True):
        if now != then:
            yield f"{name} is another"
    failing = [] if before[2] is None else before[2].failing_shape_guards(tensors, numbers)
    yield from (f"not so: {test}" for test in failing)
    if given != other and not failing:
        yield from _reason_between_keys(given, other, leaves)
    if not before[1].hold():  # which is soon told
        yield from (f"{path} has changed" for path in before[1].changed())


def _reason_between_keys(given: tuple[object, ...], other: tuple[object, ...], leaves: int) -> Iterator[str]:
    for i, (now, then) in enumerate(zip(given[:leaves], other[:leaves], strict=True)):
        if now == then:
            continue
        if isinstance(now, tuple) and isinstance(then, tuple):
            yield f"argument {i} is {now[-1]!r} and not {then[-1]!r}"
        else:
            yield f"argument {i} is a tensor where it was not, or another one of these"
    ours, theirs = (
        [part for part in key[leaves:] if isinstance(part, tuple) and part and isinstance(part[0], type)]
        for key in (given, other)
    )
    alike = True
    for i, (now, then) in enumerate(zip(ours, theirs, strict=False)):
        where = next((k for k in range(leaves) if given[k] == i), i)
        for fact, one, another in zip(_FACTS, now, then, strict=True):
            if one != another:
                alike = False
                one, another = (tuple(v) if isinstance(v, tuple) else v for v in (one, another))
                yield f"argument {where}: {fact} is {one} and not {another}"
    if alike and given[leaves:] != other[leaves:]:
        yield "how the tensors lie in memory, or what they are views of, is another"
