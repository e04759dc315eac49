"""Users' own functions are made small, the text shows it alone, and nothing of the user's changes."""

from __future__ import annotations

import functools
import gc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import aot
from fuzz.cli import main
from fuzz.corpus import buckets, case_file
from fuzz.errors import (
    CannotRecord,
    NoDifference,
)
from fuzz.minify import Minified, minify
from fuzz.minify.compiler_source import compiler_source
from fuzz.operators import OPERATORS
from fuzz.program.decode import Program, Region, View
from fuzz.program.printer import load as load_program
from tests.fuzz import bad_targets as bad

Function = Callable[..., Any]


class _Gelu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 1.5 if func is torch.nn.functional.gelu else result


def wrong_gelu(function: Function) -> Function:
    """A compiler that has another factor in one function."""

    def compiled(*args: Any) -> Any:
        with _Gelu():
            return function(*args)

    return compiled


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.LayerNorm(16),
        torch.nn.GELU(),
        torch.nn.Dropout(0.2),
        torch.nn.BatchNorm1d(16),
        torch.nn.Linear(16, 4),
    )


def chain(x: torch.Tensor, turns: int) -> torch.Tensor:
    for i in range(turns):
        x = (x * 1.01 + i).tanh()
    return x


def step(x: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """A module from a global, a dict that holds what is written to, control flow, dropout."""
    h = NET(x)
    if h.sum() < 1e6:
        h = chain(h, 10)
    seen = state["seen"][0]
    seen.add_(h.detach().mean(0), alpha=state["rate"])
    return {"h": h, "loss": (h**2).mean(), "note": ("text", 3)}


def views(x: torch.Tensor) -> Any:
    part = x.view(-1)[3:9]
    return chain(x, 12), [part, {"k": chain(part * 2, 5)}]


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return chain(x, 8) * y + chain(y.sin(), 8)


def expanded_writes(x: torch.Tensor, index: torch.Tensor) -> Any:
    y = chain(x[index], 8)
    x.expand(3, 4, 5).zero_()
    return chain(y, 8), {"x": x.mean()}


NET = network()


def step_arguments() -> tuple[Any, ...]:
    return torch.randn(6, 8), {"seen": [torch.zeros(4)], "rate": 0.5}


def the_same_twice() -> tuple[Any, ...]:
    x = torch.randn(3, 4, requires_grad=True)
    return x, x


CASES: dict[str, tuple[Function, Function, Any, str, int]] = {
    "a write is dropped": (step, step_arguments, bad.drops_mutation, "input-data/", 1),
    "a function is wrong": (step, step_arguments, wrong_gelu, "input-data/", 3),
    "a draw too many": (views, lambda: (torch.randn(3, 4),), bad.draws, "randomness/", 0),
    "a view is copied": (views, lambda: (torch.randn(3, 4),), bad.copies_alias, "aliasing/", 2),
    "a gradient counts double": (twice, the_same_twice, bad.doubles_duplicate, "gradients/", 2),
    "stock: a write through an expanded view": (
        expanded_writes,
        lambda: (torch.randn(4, 5), torch.tensor([1, 2, 1])),
        "torch-aot-function",
        "input-data/",
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_made_small(name: str) -> None:
    function, arguments, target, bucket, most = CASES[name]
    minified = minify(function, arguments(), target)
    assert minified.bucket.startswith(bucket), minified.bucket
    assert minified.calls_before >= 20
    assert minified.calls <= most, minified.text
    assert minified.evaluations < 120
    assert minified.text == str(minified)
    assert minified.findings[0].message


def small(minified: Minified) -> str:
    """The definitions of a script."""
    return minified.text[minified.text.index("def make") : minified.text.index("def named")]


def test_the_text_runs_alone_and_says_what_differs(tmp_path: Path) -> None:
    function, arguments, target, _, _ = CASES["stock: a write through an expanded view"]
    minified = minify(function, arguments(), target)
    assert minified.shown
    script = tmp_path / "repro.py"
    script.write_text(str(minified))
    assert "fuzz" not in minified.text and "oracles" not in minified.text
    command = [sys.executable, "-I", str(script)]  # without this project on the path
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "eager and the target differ" in done.stdout
    right = re.sub(r"^target = .*", "target = look(f)", str(minified), flags=re.MULTILINE)
    assert right != str(minified)
    script.write_text(right)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no difference\n"), done.stderr


@pytest.mark.nightly
def test_the_documented_example_prints_what_the_documentation_says() -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "reduce-a-function.md").read_text()
    example, printed_text = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"print": lambda _: None}
    exec(example, namespace)
    minified = namespace["minified"]
    assert printed_text.strip() in minified.text
    assert minified.shown
    assert (minified.calls, minified.calls_before) == (2, 15)
    assert (
        minified.bucket == "autograd-metadata/requires_grad of out True, not False/Tensor.copy_ + Tensor.mul"
    )


def test_what_is_read_from_outside_is_as_before() -> None:
    net = network()
    net(torch.randn(6, 8)).sum().backward()
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    before = {name: (tensor.detach().clone(), tensor.grad) for name, tensor in tensors.items()}
    x = torch.randn(6, 8)
    copy, state = x.clone(), torch.get_rng_state()

    def function(x: torch.Tensor) -> Any:
        x.add_(1)
        result = net(x).relu_()
        with torch.no_grad():
            next(iter(net.parameters())).zero_()
        return result, next(iter(net.parameters()))

    minified = minify(function, (x,), bad.drops_mutation)
    assert minified.calls == 1
    assert torch.equal(x, copy)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in tensors.items():
        elements, grad = before[name]
        assert torch.equal(tensor, elements), name
        assert tensor.grad is grad, name
        assert tensor.requires_grad is isinstance(tensor, torch.nn.Parameter), name


def test_collections_pass_over_what_was_there_before() -> None:
    """Every candidate that leaves something alive costs full ones, and the heap is the user's."""
    frozen: list[int] = []

    def target(function: Function) -> Function:
        frozen.append(gc.get_freeze_count())
        return bad.wrong_by_one(function)

    gc.unfreeze()
    try:
        minify(torch.sin, (torch.ones(2),), target)
        after = gc.get_freeze_count()
    finally:
        gc.freeze()
    minify(torch.sin, (torch.ones(2),), target)
    assert after == 0 and len(frozen) >= 4
    assert min(frozen) > 100_000
    assert gc.get_freeze_count() > 100_000, "what somebody else has frozen stays so"


def test_a_module_may_be_given_itself() -> None:
    net = network()
    minified = minify(net, (torch.randn(6, 8),), wrong_gelu)
    assert minified.calls <= 3
    assert minified.calls_before >= 6


def test_the_difference_is_kept_and_not_another_one() -> None:
    """Each of the two faults shows alone as well, in a smaller function."""

    def both(function: Function) -> Function:
        return bad.copies_alias(wrong_gelu(function))

    def function(x: torch.Tensor) -> Any:
        return torch.nn.functional.gelu(x).sum(), x.view(-1)

    minified = minify(function, (torch.randn(2, 3),), both)
    assert minified.bucket == "values/out elements/nn.functional.gelu"


def test_modes_stay_where_they_matter() -> None:
    def drops_under_no_grad(function: Function) -> Function:
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if func is torch.Tensor.sin and not torch.is_grad_enabled():
                    return result + 1
                return result

        def compiled(*args: Any) -> Any:
            with Mode():
                return function(*args)

        return compiled

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with torch.no_grad():
            y = y + x.sin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = y @ y
        return y

    minified = minify(function, (torch.ones(2, 2),), drops_under_no_grad)
    text = small(minified)
    assert "    with torch.no_grad():\n        v0 = x0.sin()\n" in text
    assert "autocast" not in text
    with torch.no_grad():
        inside = minify(function, (torch.ones(2, 2),), drops_under_no_grad)
    assert "no_grad" not in small(inside), "it is called under no_grad, and calls nothing under another mode"
    assert "    with torch.no_grad():\n        result = function(*args)\n" in inside.text
    with torch.autocast("cpu"), pytest.raises(CannotRecord, match="autocast"):
        minify(function, (torch.ones(2, 2),), drops_under_no_grad)


def test_inputs_lie_as_they_did() -> None:
    """What is noticed is an overlap of two arguments by one element, a dtype, and a history."""

    def notices(function: Function) -> Function:
        def compiled(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> Any:
            overlap = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            history = any(one.requires_grad and not one.is_leaf for one in rest)
            result = function(a, b, *rest)
            return result + (overlap and history and a.dtype is torch.float64)

        return compiled

    base = torch.arange(12.0, dtype=torch.float64)
    weight = torch.ones(3, requires_grad=True) * 2
    minified = minify(lambda a, b, c: a.sum() + b.sum() + c.sum(), (base[:5], base[4:], weight), notices)
    text = small(minified)
    assert text.count("as_strided") >= 1
    assert "float64" in text
    assert ".requires_grad_()" in text
    assert "leaf" in text


def test_compilers_are_printed() -> None:
    assert compiler_source("", torch.compile).compiled == "torch.compile(f)"
    partial = functools.partial(torch.compile, backend="eager")
    assert compiler_source("", partial).compiled == "torch.compile(f, backend='eager')"
    anonymous = compiler_source("", lambda f: torch.compile(f, backend="aot_eager"))
    assert anonymous.setup == 'compiler = lambda f: torch.compile(f, backend="aot_eager")'
    assert compiler_source("", bad.drops_mutation).compiled == "tests.fuzz.bad_targets.drops_mutation(f)"
    assert "import tests.fuzz.bad_targets" in compiler_source("", bad.drops_mutation).setup
    assert "put your compiler here: mine" in compiler_source("mine", lambda f: chain(f, 0)).setup
    compile(compiler_source("a\"'\n\\", lambda f: chain(f, 0)).setup, "setup", "exec")


def example() -> tuple[Function, tuple[Any, ...]]:
    function, arguments, _, _, _ = CASES["a view is copied"]
    return function, arguments()


def unlike() -> None:
    """No function and no arguments."""


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["minify", "tests.fuzz.minify.test_minify:example", "--target"]
    assert main([*command, "tests.fuzz.bad_targets:copies_alias"]) == 0
    out, err = capsys.readouterr()
    assert "import tests.fuzz.bad_targets" in out and "def make():" in out
    assert re.search(r"\d\d -> 1 calls in \d+ evaluations: aliasing/", err), err
    assert main([*command, "tests.fuzz.bad_targets:good"]) == 1
    assert "does not differ from eager (both agree)" in capsys.readouterr().err
    assert main(["minify", "tests.fuzz.minify.test_minify:unlike", "--target", "eager"]) == 2
    assert "it must be a function without parameters" in capsys.readouterr().err
    assert main(["minify", "tests.fuzz.minify.test_minify:nothing", "--target", "eager"]) == 2
    assert "has no attribute 'nothing'" in capsys.readouterr().err


def test_the_front_door_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    minified = aot.minify(torch.sin, (torch.ones(2),), bad.wrong_by_one)
    assert isinstance(minified, Minified)
    assert (minified.calls, minified.calls_before) == (0, 1)
    monkeypatch.setitem(sys.modules, "fuzz.minify", None)
    with pytest.raises(aot.MissingPackage, match=r"'fuzz\.minify', which is not installed"):
        aot.minify(torch.sin, (torch.ones(2),), bad.wrong_by_one)


def can_be_given(program: Program) -> bool:
    """Whether a program is one call, of what can be recorded."""
    views = [argument for argument in program.arguments if isinstance(argument, View)]
    plain = not any(view.wrapped or view.lazy for view in views) and not any(
        storage.detached for storage in program.storages
    )
    checkpoint = any(isinstance(block, Region) and block.mode == "checkpoint" for block in program.blocks)
    own = any(OPERATORS[statement.operator].defines for statement in program.statements)
    part = program.scenario.differentiate is not None
    return plain and not (checkpoint or own or part or program.later or program.scenario.steps)


CORPUS = Path(__file__).parents[3] / "corpus"
STOCK = [
    file
    for file in sorted(CORPUS.glob("*.json"))
    if (case := case_file.read(file)).state("torch-aot-function", str(torch.__version__)) == case_file.DIFFERS
    and can_be_given(case.program)
]
# One of each clause on every run: what is wrong makes no difference to the minifier.
EACH_CLAUSE = {case_file.read(file).clause: file for file in reversed(STOCK)}.values()


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[] if file in EACH_CLAUSE else [pytest.mark.nightly]) for file in STOCK],
    ids=lambda file: file.stem,
)
def test_a_recorded_difference_is_found_in_a_function(file: Path) -> None:
    """What is known of torch's `aot_function`, given as a function: the same difference, no more calls."""
    case = case_file.read(file)
    loaded = load_program(case.program)
    args, _, _ = loaded.make()
    scenario = case.program.scenario
    with torch.inference_mode(scenario.inference), torch.set_grad_enabled(scenario.grad):
        minified = minify(loaded.f, args, "torch-aot-function")
    assert minified.bucket.startswith(buckets.signature(case.findings) + "/")
    # (`set_` to a tensor's own storage asks for that first.)
    assert minified.calls <= max(len(case.program.statements), minified.calls_before)
    assert minified.shown


def test_there_are_recorded_differences() -> None:
    assert len(STOCK) >= 5


def subtracts_what_is_to_be_added(function: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that is wrong about additions, below a compiler that refuses what functions read outside."""

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.add.Tensor:
                node.target = torch.ops.aten.sub.Tensor
        module.recompile()
        return aot.nop(module, _)

    compiler = aot.aot_module if isinstance(function, torch.nn.Module) else aot.aot_function
    compiled: Callable[..., Any] = compiler(function, backend, aot.nop)  # type: ignore[operator]
    return compiled


def test_a_module_under_a_compiler_that_takes_parameters_and_nothing_else_from_outside() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x * self.scale).sin() + self.scale).exp()

    minified = minify(Model(), (torch.ones(2, 3),), subtracts_what_is_to_be_added)
    assert minified.calls == 1
    assert "add(" in minified.text or " + " in minified.text


def test_two_tensors_without_elements_are_on_one_storage() -> None:
    """What is recorded does the same: a write to the one moves the counter of the other."""
    written = torch.empty(0)
    other = torch.nn.Parameter(written)

    def f() -> torch.Tensor:
        written.unsqueeze(0).clamp_(-1, 1)
        return other

    with pytest.raises(NoDifference, match="agree"):
        minify(f, (), bad.good)
