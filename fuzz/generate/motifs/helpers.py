"""What motifs are made of: statements that are appended where eager takes them, and a choice of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.abstract.state import AbstractTensor
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.ir.nodes import Region
from fuzz.operators import OPERATORS
from fuzz.operators.row import Constant, Kind

_FILLING = (Kind.IN_PLACE, Kind.RANDOM, Kind.SCATTER)
WRITES = tuple(
    name
    for name, row in OPERATORS.items()
    if row.kind in _FILLING and row.writes == (0,) and len(row.operands) == 1
)
CURVED = ("sin", "exp", "tanh", "square")  # which have second derivatives
REAL = ("float32", "float64")


def append_motif_statement(
    builder: ProgramBuilder, operator: str, operands: tuple[str, ...], **attributes: Constant
) -> str | None:
    """Append a statement, with attributes that are drawn where none are given; its first result's name, "" if
    it has none, or None if eager does not take it."""
    row, kinds = OPERATORS[operator], dict(builder.profile.kinds)
    if builder.over or (kinds and row.kind not in kinds):
        return None
    metas = [builder.state.meta(name) for name in operands]
    fits = zip(row.operands, metas, strict=True)
    if any(m.dtype not in o.dtypes or not o.fits(m, metas[:i]) for i, (o, m) in enumerate(fits)):
        return None
    return builder.append(row, operands, metas, dict(attributes) or None)


def write(builder: ProgramBuilder, name: str, operators: Sequence[str]) -> None:
    for _ in range(4):
        if append_motif_statement(builder, builder.choices.pick(operators), (name,)) is not None:
            return


def append_motif_region(builder: ProgramBuilder, mode: str, append: Callable[[], object]) -> None:
    """A region around what is appended."""
    before, outer = len(builder.statements), builder.block
    builder.blocks.append(Region(mode, outer))
    builder.enter(len(builder.blocks) - 1)
    append()
    builder.enter(outer)
    if len(builder.statements) == before:
        del builder.blocks[-1]


def draw_differentiable(builder: ProgramBuilder) -> list[str]:
    """Real numbers that require grad: nowhere where there are infinities, of which second derivatives by two
    ways are not kept (docs/reference/contract.md)."""
    if any(storage.special for storage in builder.inputs.storages):
        return []
    return [name for name, tensor in builder.pool if tensor.requires_grad and tensor.meta.dtype in REAL]


def same_dtype_and_size(builder: ProgramBuilder, name: str, names: Sequence[str]) -> list[str]:
    """Those of some tensors that have a tensor's dtype and size."""
    like = builder.state.meta(name)[:2]
    return [one for one in names if builder.state.meta(one)[:2] == like]


def in_argument_memory(builder: ProgramBuilder, names: Sequence[str]) -> list[str]:
    """Those that lie in an argument's memory."""
    return [name for name in names if builder.state.tensor(name).memory in builder.memories]


def is_followed(tensor: AbstractTensor) -> bool:
    """Whether eager takes a write to it in grad mode, and autograd follows that."""
    return tensor.requires_grad and (tensor.base or tensor).grad_fn and tensor.made == "plain"


def append_motif_product(builder: ProgramBuilder, name: str) -> str | None:
    """Multiply something that requires grad by a tensor that is as large: the product, if there is one."""
    meta = builder.state.meta(name)
    names = [
        n
        for n, t in builder.pool
        if t.requires_grad
        and t.meta.dtype == meta.dtype
        and len(t.meta.size) <= len(meta.size)
        and all(a in (1, b) for a, b in zip(t.meta.size[::-1], meta.size[::-1], strict=False))
    ]
    return append_motif_statement(builder, "mul", (builder.choices.pick(names), name)) if names else None
