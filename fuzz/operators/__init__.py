"""The operator table: one row says everything that generator, printer and reader know of an operator.

Invariant: rows are data and text, and no module imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fuzz.operators import (
    activations,
    autograd_functions,
    backward_writes,
    binary_functions,
    copy_kernels,
    creation,
    custom,
    data_sizes,
    elementary_functions,
    higher_order,
    index_kernels,
    indexing,
    inplace,
    linear_algebra,
    list_kernels,
    matmul,
    matrix_kernels,
    metadata_mutations,
    multi_views,
    neural,
    normalization,
    out_variants,
    pointwise,
    python_state,
    reduction_kernels,
    reductions,
    refused_kernels,
    scatters,
    side_effects,
    size_kernels,
    special_views,
    subclasses,
    training_scripts,
    views,
    window_kernels,
)
from fuzz.operators.row import (
    Aliasing,
    Attribute,
    Change,
    Expanded,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
)

__all__ = [
    "AUTOCAST",
    "INVERSES",
    "OPERATORS",
    "Aliasing",
    "Attribute",
    "Change",
    "Expanded",
    "Kind",
    "Meta",
    "Mismatch",
    "Operand",
    "Operator",
    "Result",
]


def _operator_table() -> Mapping[str, Operator]:
    table: dict[str, Operator] = {}
    for family in (
        pointwise,
        reductions,
        matmul,
        views,
        multi_views,
        special_views,
        inplace,
        out_variants,
        metadata_mutations,
        creation,
        indexing,
        scatters,
        activations,
        neural,
        normalization,
        linear_algebra,
        autograd_functions,
        backward_writes,
        custom,
        side_effects,
        higher_order,
        subclasses,
        python_state,
        data_sizes,
        training_scripts,
        elementary_functions,
        binary_functions,
        reduction_kernels,
        index_kernels,
        matrix_kernels,
        list_kernels,
        size_kernels,
        copy_kernels,
        window_kernels,
        refused_kernels,
    ):
        for row in family.ROWS:
            if row.name in table:
                raise ValueError(f"two rows are named {row.name}")
            table[row.name] = row
    return MappingProxyType(table)


OPERATORS: Mapping[str, Operator] = _operator_table()

# The row that takes back what another has done to its first operand, given the same operands and attributes.
INVERSES: Mapping[str, str] = MappingProxyType(
    {
        "add_number_": "sub_number_",
        "sub_number_": "add_number_",
        "neg_": "neg_",
        "t_": "t_",
        "transpose_": "transpose_",
        "swapdims_": "swapdims_",
        "unsqueeze_": "squeeze_dim_",
    }
)

# What autocast on the CPU makes of the operands of a row: "lower" precision, or "float32". With "mixed" the
# row refuses half precision of another kind than autocast's; "lower unless one" leaves a product that is one
# element alone.
AUTOCAST: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "mv", "bmm", "matmul", "addmm", "linear", "matrix_square"), "lower"),
        **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d"), "lower"),
        **dict.fromkeys(("linalg_inv", "linalg_qr", "linalg_solve"), "lower"),
        **dict.fromkeys(("attention", "attention_heads"), "lower"),
        **dict.fromkeys(("einsum_rows", "einsum_batch"), "lower"),
        "tensordot": "lower unless one",
        **dict.fromkeys(("prod", "prod_dim", "mse_loss", "l1_loss"), "float32"),
        **dict.fromkeys(("cat", "stack", "roll"), "mixed"),
    }
)
