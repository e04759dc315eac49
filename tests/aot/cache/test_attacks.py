"""Entries of the cache that who has the user's key has written: nothing of them runs but operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import aot
from aot.cache import json_decoder, operator_table
from aot.cache.codec import Corrupt
from aot.ops.call_targets import call_by_name
from aot.ops.classify import call_on_clones
from tests.support.agreement import leaf, values
from tests.support.aot.cache_entries import content_of, put, sealed

PLAN, FORWARD, BACKWARDS, TREE = 0, 1, 2, 5
TARGETS, NODES = 1, 5


@pytest.fixture(autouse=True)
def folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return folder


def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    x.unsqueeze_(0)
    return (x * w).sin().sum(), x.view(4), (w * 2)[0]


GRAPH = fx.symbolic_trace(program)


def run() -> list[Tensor]:
    x, w = values(2, 2), leaf(2, 2, start=3)
    results = aot.aot_module_simplified(GRAPH, [x.clone(), w], aot.nop)(x, w)
    (results[0] + results[2].sum()).backward()
    assert w.grad is not None
    return [*(one.detach() for one in results), w.grad, x]


def replaced(data: Any, old: Any, new: Any) -> int:
    """Put something else in the places of an item; how many there were."""
    count = 0
    for i, one in enumerate(data if isinstance(data, list) else ()):
        if one == old and type(one) is type(old):
            data[i] = new
            count += 1
        else:
            count += replaced(one, old, new)
    return count


def calls(content: Any, *nodes: tuple[Any, list[Any], list[Any]], graph: int = FORWARD) -> None:
    """Add calls to a graph before its output: targets, arguments and named arguments. Arguments
    ``["last", k]`` are the results of these, counted from the first."""
    every = content[graph] if graph == FORWARD else content[graph][0]
    output = every[NODES].pop()
    first = len(every[NODES])
    for number, (target, args, kwargs) in enumerate(nodes):
        args = [["node", first + one[1]] if _is_result(one) else one for one in args]
        every[TARGETS].append(target)
        name = f"added_{number}"
        every[NODES].append(
            ["call_function", name, len(every[TARGETS]) - 1, args, kwargs, every[NODES][0][5], None]
        )
    every[NODES].append(output)


def _is_result(value: Any) -> bool:
    return isinstance(value, list) and value[0] == "last"


CODE = "open('pwned', 'w').write('x')"


def walks_attributes(content: Any) -> None:
    calls(
        content,
        ("call_by_name", ["__getattr__.__getattribute__", "__globals__"], []),
        ("getitem", [["last", 0], "__builtins__"], []),
        ("getitem", [["last", 1], "exec"], []),
        ("call_with_grad", [["last", 2], CODE], []),
    )


def has_an_operator_that_is_text(content: Any) -> None:
    hostile = f"aten.__dict__[({CODE}, torch.ops.aten.view, 'view')[2]].default"
    assert replaced(content[PLAN], ["aten::view", "default"], hostile)


def has_a_path_that_is_text(content: Any) -> None:
    hostile = f"as_strided(())if {CODE} else t0"
    assert replaced(content[PLAN], ["ArgumentRoot", [0, []]], ["ArgumentRoot", [0, [hostile]]])


def has_a_path_to_an_attribute(content: Any) -> None:
    assert replaced(content[PLAN], ["ArgumentRoot", [0, []]], ["ArgumentRoot", [0, ["data"]]])


def opens_a_file(content: Any) -> None:
    size = [["dtype", ["dtype", "uint8"]]]
    calls(
        content,
        (["aten::from_file", "default"], ["pwned", True, 5], size),
        (["aten::ones", "default"], [["list", 5]], size),
        (["aten::copy_", "default"], [["last", 0], ["last", 1]], []),
    )


def opens_a_file_in_the_backward(content: Any) -> None:
    size = [["dtype", ["dtype", "uint8"]]]
    calls(content, (["aten::from_file", "default"], ["pwned", True, 5], size), graph=BACKWARDS)


def opens_a_file_for_clones(content: Any) -> None:
    inner = ["tuple", "pwned", True, 5]
    written = ["tuple", "out"]
    calls(
        content,
        (["aten::ones", "default"], [["list", 5]], []),
        (
            "call_on_clones",
            [["op", "aten::from_file", "out"], written, inner, ["dict", ["out", ["node", 0]]]],
            [],
        ),
    )


def writes_to_an_argument(content: Any) -> None:
    calls(
        content,
        (["aten::zeros_like", "default"], [["node", 1]], []),
        (["aten::copy_", "default"], [["node", 1], ["last", 0]], []),
    )


def writes_to_an_argument_past_the_clones(content: Any) -> None:
    call = [["op", "aten::fill_", "Scalar"], ["tuple"], ["tuple", ["node", 1], 7], ["dict"]]
    calls(content, ("call_on_clones", call, []))


def writes_in_place(content: Any) -> None:
    calls(content, (["aten::add_", "Scalar"], [["node", 1], 7], []))


def writes_statistics(content: Any) -> None:
    args = [["node", 0], None, None, ["node", 1], ["node", 1], True, ["float", "0x1p-1"], ["float", "0x1p-1"]]
    calls(content, (["aten::native_batch_norm", "default"], args, []))


def reads_behind_its_memory(content: Any) -> None:
    calls(content, (["aten::_reshape_alias", "default"], [["node", 0], ["list", 9999], ["list", 1]], []))


def looks_a_dunder_up(content: Any) -> None:
    calls(content, (["aten::__class__", "__base__"], [["node", 0]], []))


def takes_an_item_by_name(content: Any) -> None:
    calls(content, ("getitem", [["node", 0], "__class__"], []))


def takes_an_item_of_a_tensor(content: Any) -> None:
    calls(content, ("getitem", [["node", 0], 0], []))


def names_an_argument_by_code(content: Any) -> None:
    calls(content, (["aten::sum", "dim_IntList"], [["node", 0]], [[f"dim=({CODE}), keepdim", True]]))


def names_a_node_by_code(content: Any) -> None:
    for node in content[FORWARD][NODES]:
        if node[0] == "placeholder":
            node[1] = node[2] = f"a={CODE}"


def names_a_node_like_torch(content: Any) -> None:
    content[FORWARD][NODES][0][1:3] = ["torch", "torch"]


def counts_from_the_end(content: Any) -> None:
    assert replaced(content[PLAN], ["ArgumentRoot", [0, []]], ["ArgumentRoot", [-1, []]])


def counts_too_far(content: Any) -> None:
    assert replaced(content[PLAN], ["ArgumentRoot", [0, []]], ["ArgumentRoot", [99, []]])


def is_of_a_huge_number(content: Any) -> None:
    assert replaced(content[PLAN], ["list", 4], ["list", 1 << 99])


def has_an_operator_that_is_no_view(content: Any) -> None:
    assert replaced(content[PLAN], ["aten::view", "default"], ["aten::sin", "default"])


def changes_by_an_operator_that_sets_the_storage(content: Any) -> None:
    assert replaced(content[PLAN], ["aten::unsqueeze_", "default"], ["aten::set_", "default"])


def has_values_of_a_huge_size(content: Any) -> None:
    """Of no elements, so that they end where they begin."""
    fakes = [one for one in _lists(content) if one and one[0] == "fake"]
    assert fakes
    for _, where, _, _ in fakes:
        size, stride = where[0], where[1]
        where[0], where[1] = [*size[:-1], 1 << 80, 0], [*stride[:-1], 1, 1]


def has_arguments_of_a_huge_stride(content: Any) -> None:
    changed = 0
    for where in _lists(content[PLAN]):
        if len(where) == 6 and type(where[0]) is list and type(where[1]) is list and type(where[2]) is int:
            where[0], where[1] = [0], [1 << 80]
            changed += 1
    assert changed


def says_nothing_of_an_input(content: Any) -> None:
    places = [one for one in content[BACKWARDS][0][NODES] if one[0] == "placeholder"]
    places[-1][6] = None


def writes_to_the_base_of_what_is_no_view(content: Any) -> None:
    assert replaced(content[PLAN], ["ArgumentEdge", [1, False]], ["ArgumentEdge", [1, True]])


def gives_results_in_another_tree(content: Any) -> None:
    assert content[TREE][2] == ["dict"]
    content[TREE][2] = ["list"]


def puts_a_result_into_a_place_that_there_is_not(content: Any) -> None:
    results = content[TREE][1]
    content[TREE][2] = ["dict", [0, results.pop()]]


def _lists(data: Any) -> Iterator[list[Any]]:
    if isinstance(data, list):
        yield data
        for one in data:
            yield from _lists(one)


ATTACKS: tuple[Callable[[Any], None], ...] = (
    walks_attributes,
    has_an_operator_that_is_text,
    has_a_path_that_is_text,
    has_a_path_to_an_attribute,
    opens_a_file,
    opens_a_file_in_the_backward,
    opens_a_file_for_clones,
    writes_to_an_argument,
    writes_to_an_argument_past_the_clones,
    writes_in_place,
    writes_statistics,
    reads_behind_its_memory,
    looks_a_dunder_up,
    takes_an_item_by_name,
    takes_an_item_of_a_tensor,
    names_an_argument_by_code,
    names_a_node_by_code,
    names_a_node_like_torch,
    counts_from_the_end,
    counts_too_far,
    is_of_a_huge_number,
    has_values_of_a_huge_size,
    has_arguments_of_a_huge_stride,
    has_an_operator_that_is_no_view,
    changes_by_an_operator_that_sets_the_storage,
    says_nothing_of_an_input,
    writes_to_the_base_of_what_is_no_view,
    gives_results_in_another_tree,
    puts_a_result_into_a_place_that_there_is_not,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_of_an_entry_runs(attack: Callable[[Any], None], folder: Path) -> None:
    wanted = run()
    (file,) = folder.glob("*.aot")
    content = content_of(file)
    attack(content)
    put(file, content)
    with pytest.warns(aot.CacheWarning, match="dropped, and compiled anew"):
        torch.testing.assert_close(run(), wanted, rtol=0, atol=0)
    stats = aot.cache.stats()
    assert (stats.hits, stats.dropped) == (0, 1)
    assert not Path("pwned").exists()


def test_what_is_added_and_may_run_is_read(folder: Path) -> None:
    """So the attacks above are dropped for what they call, and not for how they are put into an entry."""
    wanted = run()
    (file,) = folder.glob("*.aot")
    content = content_of(file)
    calls(content, (["aten::sin", "default"], [["node", 0]], []))
    calls(content, (["aten::neg", "default"], [["node", 0]], []), graph=BACKWARDS)
    put(file, content)
    torch.testing.assert_close(run(), wanted, rtol=0, atol=0)
    assert aot.cache.stats().hits == 1


TEXTS: dict[str, str] = {
    "deep": "[" * 50_000 + "]" * 50_000,
    "deep, behind brackets in a text": '["' + "]" * 50_000 + '",' + "[" * 50_000 + "]" * 50_000 + "]",
    "an object": '{"a": 1}',
    "no number": "[NaN]",
    "too large a number": "[1e999]",
    "digits": "[" + "1" * 100_000 + "]",
    "nothing": "",
    "half": "[1, 2",
}


@pytest.mark.parametrize("name", TEXTS)
def test_other_json_is_dropped_at_any_recursion_limit(name: str, folder: Path) -> None:
    wanted = run()
    (file,) = folder.glob("*.aot")
    file.write_bytes(sealed(TEXTS[name].encode(), file.stem))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)  # as programs do that have deep models
    try:
        with pytest.warns(aot.CacheWarning, match="dropped, and compiled anew"):
            torch.testing.assert_close(run(), wanted, rtol=0, atol=0)
    finally:
        sys.setrecursionlimit(limit)


def test_texts_in_json_may_hold_brackets() -> None:
    assert json_decoder.parse_json(rb'["[[\"[", "]"]') == ['[["[', "]"]
    with pytest.raises(Corrupt, match="deep"):
        json_decoder.parse_json(b"[" * 101 + b"]" * 101)


def overloads() -> Iterator[Any]:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace in operator_table.TORCHS:
            op = operator_table.find_operator(f"{namespace}::{packet}", overload or "default", frozenset())
            if op is not None:
                yield op


def test_the_table_has_no_operator_that_does_more_than_compute() -> None:
    known = [op for op in overloads() if operator_table.is_computing_operator(op)]
    assert len(known) > 900
    assert torch.ops.aten.add.Tensor in known and torch.ops.aten.view.default in known
    for op in known:
        assert not op._schema.is_mutable, op
        for argument in op._schema.arguments:
            kind = str(argument.type)
            assert "Storage" not in kind and "Stream" not in kind and "__torch__" not in kind, op
            if "str" in kind:
                assert argument.name not in ("filename", "path", "name"), op
    names = {
        op._schema.name.partition("::")[2] for op in overloads() if operator_table.is_computing_operator(op)
    }
    names |= {op._schema.name.partition("::")[2] for op in overloads() if operator_table.runs_on_clones(op)}
    for part in (
        "from_file",
        "set_",
        "resize",
        "_unsafe_tensor",
        "pin_memory",
        "fbgemm",
        "_backward_",
        "nested",
    ):
        assert not [name for name in names if name.startswith(part)], part
    assert not [name for name in names if "sparse" in name or "quantized" in name or "_print" in name]


def test_calls_fit_their_schemas() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    aten = torch.ops.aten
    right: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = (
        (aten.add.Tensor, (x, x), {"alpha": 2}),
        (aten.add.Tensor, (x, 2), {}),
        (aten.sum.dim_IntList, (x, [0, 1], True), {"dtype": torch.float64}),
        (aten.index.Tensor, (x, [None, x]), {}),
        (aten.div.Tensor_mode, (x, x), {"rounding_mode": "floor"}),
        (call_by_name, ("random.from", x, 0, 9), {}),
        (call_on_clones, (aten.fill_.Scalar, (0,), (x, 2), {}), {}),
    )
    wrong: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = (
        (aten.add.Tensor, (x, x, 2, 3), {}),
        (aten.add.Tensor, (x,), {}),
        (aten.add.Tensor, (x, x), {"out": x}),
        (aten.add.Tensor, (x, "x"), {}),
        (aten.sum.dim_IntList, (x, ["0"]), {}),
        (call_by_name, ("add.Tensor", x, x), {}),
        (call_by_name, ("random.from.__class__", x, 0, 9), {}),
        (call_on_clones, (aten.fill_.Scalar, (), (x, 2), {}), {}),
        (call_on_clones, ("from_file.out", ("out",), ("name",), {"out": x}), {}),
        (open, ("pwned", "w"), {}),
    )
    for target, args, kwargs in right:
        assert operator_table.has_right_call(target, args, kwargs, frozenset()), (target, args)
    for target, args, kwargs in wrong:
        assert not operator_table.has_right_call(target, args, kwargs, frozenset()), (target, args)
