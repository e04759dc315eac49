"""Operators that a training script has: sparse embeddings, jagged tensors, blocks that are checkpointed.

What a checkpoint computes again, and what a nested tensor is made of, are copies: of their operands a
backward keeps nothing. A backward is not under the function modes of the call, so that what is checkpointed
calls nothing that programs' modes exchange (`fuzz.program.printer.SWAP`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.operators.builders import INDEX, PYTHON, alike, fits_anywhere, new_tensor, python_row
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.row import (
    MAX_ELEMENTS,
    Attributes,
    Meta,
    Mismatch,
    Operand,
    Result,
)

# The gradient of the embedding is sparse, and that of what it is an embedding of is not.
_EMBED = """
class Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to_dense()


def embed(x, index):
    return torch.nn.functional.embedding(index, Dense.apply(x), sparse=True)
""".strip()

_AS_JAGGED = """
def as_jagged(x):
    values = x.reshape(x.shape[0], -1).clone(memory_format=torch.contiguous_format)
    first = x.shape[0] // 2
    offsets = torch.tensor([0, first, x.shape[0]], device=x.device)
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, min_seqlen=first, max_seqlen=x.shape[0] - first
    )
""".strip()

_JAGGED_VALUES = f"""
{_AS_JAGGED}


def jagged_values(x):
    nested = as_jagged(x)
    return ((nested * 2).sin() + nested).values().clone()
""".strip()

_JAGGED_PADDED = f"""
{_AS_JAGGED}


def jagged_padded(x):
    nested = as_jagged(x)
    return torch.nested.to_padded_tensor(nested * nested, 0.5)
""".strip()

# Dynamo does not capture what makes it: it is an argument of the graph that follows.
_JAGGED_GIVEN = f"""
{_AS_JAGGED}


def jagged_given(x):
    nested = torch.compiler.disable(as_jagged)(x)
    return (nested.sin() * nested).values() * 2
""".strip()

# The block leaves another number in its buffer than it finds there at first: a backward computes with that
# one, however often it comes by.
_CHECKPOINT_BUFFER = """
import torch.utils.checkpoint


def checkpoint_buffer(x):
    seen = x.new_zeros(())

    def block(x):
        result = x.cos() * (seen + 1)
        with torch.no_grad():
            seen.fill_(1)
        return result

    return torch.utils.checkpoint.checkpoint(block, x.clone(), use_reentrant=False)
""".strip()

_CHECKPOINT_NUMBER = """
import torch.utils.checkpoint


def checkpoint_number(x, number):
    def block(x):
        return (x + number).tanh()

    return torch.utils.checkpoint.checkpoint(block, x.clone(), use_reentrant=False)
""".strip()


def _moved(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[1].dtype in COMPLEX:
        raise Mismatch("a complex number")
    return alike(metas, attributes)


def _embedded(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    weight, index = metas
    if len(weight.size) != 2 or not prod(weight.size):
        raise Mismatch(f"a tensor of size {weight.size} is no table of rows")
    size = (*index.size, weight.size[1])
    if prod(size) > MAX_ELEMENTS:
        raise Mismatch("more elements than any program's tensor has")
    return new_tensor(weight.dtype, size)


def _lengths(meta: Meta) -> tuple[int, int, int]:
    """How many rows the two parts of a jagged tensor have, and how long each row is."""
    if not meta.size or meta.size[0] < 2 or not prod(meta.size):
        raise Mismatch(f"a tensor of size {meta.size} has no two rows with elements")
    first = meta.size[0] // 2
    return first, meta.size[0] - first, prod(meta.size[1:])


def _rows(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    first, second, length = _lengths(metas[0])
    return new_tensor(metas[0].dtype, (first + second, length))


def _padded(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    first, second, length = _lengths(metas[0])
    return new_tensor(metas[0].dtype, (2, max(first, second), length))


_EXACT = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_TABLE = Operand(_EXACT.dtypes, lambda meta, earlier: len(meta.size) == 2 and prod(meta.size) > 0)
_ROWED = Operand(
    _EXACT.dtypes, lambda meta, earlier: bool(meta.size) and meta.size[0] > 1 and prod(meta.size) > 0
)

ROWS = (
    python_row(
        "embedding_sparse",
        "torch.nn.functional.embedding({1} % {n}, {0}, sparse=True)",
        _embedded,
        (_TABLE, INDEX),
    ),
    python_row("embedding_within", "embed({0}, {1} % {n})", _embedded, (_TABLE, INDEX), _EMBED),
    python_row("jagged_values", "jagged_values({0})", _rows, (_ROWED,), _JAGGED_VALUES),
    python_row("jagged_padded", "jagged_padded({0})", _padded, (_ROWED,), _JAGGED_PADDED),
    python_row("jagged_given", "jagged_given({0})", _rows, (_ROWED,), _JAGGED_GIVEN),
    python_row("checkpoint_buffer", "checkpoint_buffer({0})", alike, (_EXACT,), _CHECKPOINT_BUFFER),
    python_row(
        "checkpoint_number",
        "checkpoint_number({0}, {1})",
        _moved,
        (_EXACT, PYTHON),
        _CHECKPOINT_NUMBER,
    ),
)
# Their gradient is sparse, which few operators take: only leaves get it.
SPARSE_GRADIENTS = frozenset({"embedding_sparse"})
# Of a sparse gradient, and of a nested one, there are no second derivatives.
FIRST_DERIVATIVES = frozenset(row.name for row in ROWS if row.name.startswith(("embedding", "jagged")))
