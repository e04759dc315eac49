"""Every operator of torch's `op_db` and every module of its `module_db`, through `aot` and in eager.

Of every third one the first sample in one of its variants; all samples of all, in all variants, are marked
`nightly`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
import torch
from torch import Tensor

from bench.compiler.opinfo.cases import MODULES, OPERATORS, Case, cases, variants
from bench.compiler.opinfo.sweep import run_case
from fuzz.targets.catalog import find_target

pytestmark = pytest.mark.clause("values")

AOT = find_target("aot")
ALL = [(name, variant) for name in (*OPERATORS, *MODULES) for variant in variants(name)]

# (Every third one: CI has ten minutes.)
SOME = [
    (name, variants(name)[i // 3 % len(variants(name))])
    for i, name in enumerate((*OPERATORS, *MODULES))
    if i % 3 == 0
]

When = Callable[[Case], bool]


def tensors(case: Case) -> list[Tensor]:
    return [leaf for leaf in case.leaves if isinstance(leaf, Tensor)]


def always(case: Case) -> bool:
    return True


def given_places_as_a_tensor(case: Case) -> bool:
    return len(tensors(case)) > 1 and tensors(case)[1].dim() > 0


def given_lengths_as_tensors(case: Case) -> bool:
    return len(tensors(case)) > 2


def an_attention_mask(case: Case) -> bool:
    """Which torch compares with a causal one; without a gradient it makes a nested tensor by another one."""
    masks = [tuple(t.shape) for t in tensors(case) if t.dtype is torch.bool]
    encoder = getattr(case.module, "encoder", case.module)
    nested = case.variant == "evaluation" and encoder.use_nested_tensor
    batched = encoder.layers[0].self_attn.batch_first and tensors(case)[-1].dim() == 2
    return (3, 3) in masks or (nested and batched and bool(masks))


def a_value_with_a_gradient(case: Case) -> bool:
    return case.grad and tensors(case)[-1].requires_grad and len(tensors(case)) == 3


def in_place_grows(case: Case) -> bool:
    return "in-place" in case.variant and case.leaves[0].dim() < 2


def without_momentum(case: Case) -> bool:
    return case.variant == "training" and case.module.momentum is None


# What is refused: by which error, and for which samples. A sample for which this no longer holds fails.
REFUSED: dict[str, tuple[str, When]] = {
    **dict.fromkeys(
        [
            "allclose",
            "equal",
            "linalg_lstsq",
            "linalg_lstsq_grad_oriented",
            "nn.GaussianNLLLoss",
            "nn_functional_gaussian_nll_loss",
        ],
        ("DataDependentValue", always),
    ),
    "nn.Transformer": ("DataDependentValue", an_attention_mask),
    "nn.TransformerEncoder": ("DataDependentValue", an_attention_mask),
    "index_fill": ("DataDependentValue", a_value_with_a_gradient),
    "nn.BatchNorm1d": ("DataDependentValue", without_momentum),
    "nn.BatchNorm2d": ("DataDependentValue", without_momentum),
    "nn.BatchNorm3d": ("DataDependentValue", without_momentum),
    "nn.CTCLoss": ("DataDependentValue", given_lengths_as_tensors),
    "nn_functional_ctc_loss": ("DataDependentValue", given_lengths_as_tensors),
    "tensor_split": ("DataDependentValue", given_places_as_a_tensor),
    "addbmm": ("StorageMutation", in_place_grows),
    "sparse_mm_reduce": ("UnsupportedArgument", always),
    "sparse_sampled_addmm": ("UnsupportedArgument", always),
    "to_sparse": ("UnsupportedOperation", always),
}


def complaint(case: Case) -> str | None:
    """What is not as it should be; None for a case that is."""
    result = run_case(case, AOT)
    seen = f"sample {case.index}: {result.word}, {result.reason}"
    error, when = REFUSED.get(case.name, ("", lambda _case: False))
    if when(case):
        expected = result.word == "refused" and result.reason.startswith(error)
        return None if expected else f"{seen}; expected was: refused, {error}"
    return None if result.word == "equal" else seen


def check(name: str, variant: str, samples: int | None) -> None:
    complaints = [c for case in islice(cases(name, variant), samples) if (c := complaint(case)) is not None]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("name", "variant"), SOME)
def test_first_sample(name: str, variant: str) -> None:
    check(name, variant, 1)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_every_sample(name: str, variant: str) -> None:
    check(name, variant, None)


def test_the_tables_name_what_there_is() -> None:
    assert {*REFUSED} <= {*OPERATORS, *MODULES}


@pytest.mark.parametrize(
    ("target", "word"),
    [("torch-aot-function", "finding"), ("eager", "equal")],
)
def test_a_difference_is_found(target: str, word: str) -> None:
    case = next(case for case in cases("nn_functional_rrelu", "function") if case.index == 0)
    assert run_case(case, find_target(target)).word == word
