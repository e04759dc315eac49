"""Torch's trees of containers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch.utils._pytree import SequenceKey, TreeSpec, tree_flatten, tree_map, tree_unflatten

__all__ = ["SequenceKey", "TreeSpec", "tree_flatten", "tree_map", "tree_unflatten", "unflatten_function"]


def unflatten_function(spec: TreeSpec) -> Callable[[list[Any]], Any]:
    """What `tree_unflatten` does with this tree; at once where it is a leaf, or a tuple or list of leaves."""
    numbers = list(range(spec.num_leaves))
    if spec == tree_flatten(0)[1]:
        return operator.itemgetter(0)
    for kind in (tuple, list):
        if spec == tree_flatten(kind(numbers))[1]:
            return kind
    return functools.partial(tree_unflatten, treespec=spec)
