"""Every node of a result, with its path and what it is."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from oracles.observation.result_structure import result_tree_nodes

pytestmark = pytest.mark.clause("structure")

Pair = namedtuple("Pair", "first second")


class Opaque:
    """Something that is no container, no tensor and no plain value."""


def described(tree: Any) -> list[tuple[str, str]]:
    return [(node.path, node.description) for node in result_tree_nodes(tree, "out")]


def test_paths_and_descriptions() -> None:
    x = torch.ones(1)
    assert described([x, {"k": (x, None), 2: "s"}, True]) == [
        ("out", "list of 3"),
        ("out[0]", "torch.Tensor"),
        ("out[1]", "dict with keys ['k', 2]"),
        ("out[1]['k']", "tuple of 2"),
        ("out[1]['k'][0]", "torch.Tensor"),
        ("out[1]['k'][1]", "NoneType None"),
        ("out[1][2]", "str 's'"),
        ("out[2]", "bool True"),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), [1]),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ((1, 2), Pair(1, 2)),
        ((1, 2), torch.Size((1, 2))),
        ([], None),
        (torch.float32, torch.float64),
        (torch.ones(1), torch.nn.Parameter(torch.ones(1))),
        (torch.ones(2).max(0), tuple(torch.ones(2).max(0))),
        (Opaque(), object()),
    ],
)
def test_different_things_are_described_differently(one: Any, other: Any) -> None:
    assert described(one) != described(other)


def test_unknown_objects_are_described_without_an_address() -> None:
    assert described(Opaque()) == described(Opaque()) == [("out", f"{Opaque.__module__}.Opaque")]


def test_tensors_come_with_their_node() -> None:
    x, y = torch.ones(1), torch.ones(2)
    found = [node.tensor for node in result_tree_nodes((x, [y, 3]), "arg") if node.tensor is not None]
    assert found[0] is x and found[1] is y and len(found) == 2
