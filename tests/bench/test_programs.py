"""`python -m bench programs`: folders as the collections have them, and what is said of their programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.compiler import programs
from bench.compiler.programs import (
    compare_compile_times,
    draw_sample,
    graphnet,
    paritybench,
    summarize,
    trial,
)
from bench.compiler.programs.program import Program
from bench.compiler.programs.trial import NOT_RUN, WORDS, Result, Work, run_all, run_program
from fuzz import Target
from tests.bench.test_commands import tables

MODEL = """
import torch
from torch import device

class GraphModule(torch.nn.Module):
    def forward(self, L_x_: torch.Tensor, L_w_: torch.nn.parameter.Parameter, L_ids_: torch.Tensor):
        zeros = torch.zeros(2, device=device(type="cuda", index=0))
        y = torch.nn.functional.linear(L_x_ + zeros.to("cuda:0"), L_w_){and_then}
        return (y.relu_()[L_ids_], L_ids_ + 1)
"""
METAS = """
class Program_weight_tensor_meta_L_x_:
    name = "L_x_"
    shape = [3, 2]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = 4.0
    std = 1.0

class Program_weight_tensor_meta_L_w_:
    name = "L_w_"
    shape = [4, 2]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = float("inf")
    std = None
    max_val = 0.05

class Program_weight_tensor_meta_L_ids_:
    name = "L_ids_"
    shape = [5]
    dtype = "torch.int64"
    device = "cuda:0"
    mean = None
    std = None
    min_val = 1
    max_val = 2
"""
ASKS, RAISES = "\n        y = y * 2 if y.sum() > 0 else y", "\n        y = y.view(5)"


def sample(folder: Path, name: str, and_then: str = "", framework: str = "torch") -> None:
    """Write a sample of GraphNet."""
    here = folder / "source" / name
    here.mkdir(parents=True)
    (here / "model.py").write_text(MODEL.format(and_then=and_then))
    (here / "weight_meta.py").write_text(METAS)
    (here / "input_meta.py").write_text("")
    (here / "graph_net.json").write_text(f'{{"framework": "{framework}"}}')


MODULES = """
import nosuchpackage, torch
from nosuchpackage.deeper import anything

class Scaled(torch.nn.Module):
    def __init__(self, size, scale=1):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(size, size), scale
        self.norm = torch.nn.BatchNorm1d(size)

    def forward(self, x, bias=None):
        y = self.norm(self.layer(x)) * self.scale
        return y if bias is None else y + bias

class Needs(torch.nn.Module):
    def forward(self, x):
        return anything.relu(x).sum() + x

TESTCASES = [
    # (nn.Module, init_args, forward_args, jit_compiles)
    (Scaled,
     lambda: ([3], {'scale': 2}),
     lambda: ([torch.rand([4, 3])], {'bias': torch.ones(3)}),
     True),
    (Needs,
     lambda: ([], {}),
     lambda: ([torch.rand([4, 3])], {}),
     False),
]
"""


def test_samples_of_graphnet(tmp_path: Path) -> None:
    sample(tmp_path, "one")
    sample(tmp_path, "paddles", framework="paddle")
    (tmp_path / "source" / "none").mkdir()
    (tmp_path / "source" / "none" / "model.py").write_text("")
    assert graphnet.names(tmp_path) == ["source/one"]
    make = graphnet.load(tmp_path, "source/one", seed=3)
    x, w, ids = make().arguments
    assert isinstance(w, nn.Parameter) and not isinstance(x, nn.Parameter)
    assert w.shape == (4, 2) and w.max() <= 0.05 and w.isfinite().all()
    assert 3 < x.mean() < 5 and x.std() < 1
    assert set(ids.tolist()) <= {1, 2}
    result, _ = make().module(x, w, ids)
    assert result.shape == (5, 4)
    assert all(map(torch.equal, make().arguments, (x, w, ids)))
    assert not torch.equal(graphnet.load(tmp_path, "source/one", seed=4)().arguments[0], x)
    assert [one.dtype for one in make(double=True).arguments] == [torch.float64, torch.float64, torch.int64]


@pytest.mark.parametrize("below", ["", "generated"])
def test_modules_of_paritybench(tmp_path: Path, below: str) -> None:
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    (folder / "test_some.py").write_text(MODULES)
    (folder / "test_broken.py").write_text("\nTESTCASES = [(A, lambda: f(a.b=1), None, True)]\n")
    (folder / "other.py").write_text(MODULES)
    names = paritybench.names(tmp_path)
    assert names == ["test_some.py::0::Scaled", "test_some.py::1::Needs"]
    make = paritybench.load(tmp_path, names[0], seed=1)
    program = make()
    assert not program.module.training
    assert program.module.scale == 2
    assert list(program.keywords) == ["bias"]
    torch.testing.assert_close(make().module.layer.weight, program.module.layer.weight)
    assert make(double=True).module.layer.weight.dtype == torch.float64
    assert paritybench.load(tmp_path, names[0], seed=1, training=True)().module.training


def _made(function: Callable[..., Any]) -> Callable[..., Program]:
    """A program that calls a function with a parameter and a tensor."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(0.1, 1, 12).view(3, 4))
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Any:
            return function(self, x)

    def make(*, double: bool = False) -> Program:
        module, x = Module(), torch.linspace(-1, 1, 12).view(3, 4)
        return Program(module.double() if double else module, (x.double() if double else x,))

    return make


def _counts(module: Any, x: Tensor) -> Tensor:
    module.seen.add_(1)
    return (module.w * x).exp()


class Declined(Exception):
    """What a compiler raises that declines."""


def _changed(change: Callable[[nn.Module, Tensor], Any]) -> Target:
    """A compiler whose results are changed."""

    def compile_module(module: Any) -> Any:
        return lambda x: change(module, module(x))

    return Target("mine", "", compile_module, lambda e: "declined" if isinstance(e, Declined) else None)


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        (lambda module, y: y, "as eager", ""),
        (lambda module, y: y * 1.01, "wrong", "values: out[0]"),
        (lambda module, y: y.detach() + (y - y.detach()), "as eager", ""),
        (lambda module, y: 2 * y - y.detach(), "wrong", "values: out[1]"),
        (lambda module, y: (module.seen.add_(1), y)[1], "wrong", "input-data: tensor['seen']"),
        (lambda module, y: (torch.rand(()), y)[1], "wrong", "randomness"),
        (lambda module, y: y.t().contiguous().t(), "otherwise", "strides of out[0]"),
        (lambda module, y: (y,), "wrong", "structure: out[0]"),
        (lambda module, y: _raise(ValueError("no")), "raises", "ValueError: no"),
        (lambda module, y: _raise(RuntimeError("can't allocate memory")), "over limits", ""),
        (lambda module, y: _raise(Declined("cannot")), "refused", "declined: cannot"),
    ],
)
def test_what_differs_from_eager(change: Callable[[Any, Tensor], Any], word: str, reason: str) -> None:
    (result,) = run_program("p", _made(_counts), [_changed(change)])
    assert (result.name, result.target, result.word) == ("p", "mine", word)
    assert reason in result.reason
    assert result.seconds > 0


def test_what_proves_nothing() -> None:
    calls = iter(range(100))
    target = _changed(lambda module, y: y)
    for function, reason in (
        (lambda module, x: module.w @ x, "eager raises"),
        (lambda module, x: [x] * next(calls), "eager is unstable"),
    ):
        (result,) = run_program("p", _made(function), [target])
        assert result.word == NOT_RUN
        assert reason in result.reason


def dies(module: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that takes its process down."""
    return lambda *args: os._exit(3)


def hangs(module: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that takes all the time that there is."""

    def run(*args: Any) -> Any:
        assert signal.alarm(0) > 0
        os.kill(os.getpid(), signal.SIGALRM)

    return run


@pytest.mark.parametrize(
    ("compiler", "word", "reason"), [("dies", "died", "exit status 3"), ("hangs", "over limits", "SIGALRM")]
)
def test_a_target_that_dies_is_told_from_others(
    compiler: str, word: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(tmp_path, "fine")
    work = {"collection": graphnet.__name__, "folder": str(tmp_path), "name": "source/fine"}
    monkeypatch.setattr(trial, "warm_up", lambda names: None)
    targets = ["eager", f"{__name__}:{compiler}"]
    eager, other = trial.handle({**work, "seed": 0, "training": False, "targets": targets, "seconds": 60.0})
    assert eager["word"] == "as eager"
    assert (other["word"], other["reason"]) == (word, reason)


def test_processes_end_and_others_go_on(tmp_path: Path) -> None:
    sample(tmp_path, "fine")
    sample(tmp_path, "ends", and_then="\n        import os; os._exit(4)")
    names = ("ends", "fine", "gone")
    work = [Work(graphnet.__name__, str(tmp_path), f"source/{name}", 0, False) for name in names]
    found = {one.name: one for (one,) in run_all(work, ["eager"], 1, 200.0, 4 << 30)}
    assert found["source/fine"].word == "as eager"
    assert (found["source/ends"].word, found["source/ends"].reason) == (NOT_RUN, "eager alone: exit status 4")
    assert found["source/gone"].word == NOT_RUN
    assert found["source/gone"].reason.startswith("cannot be loaded: FileNotFoundError")


def test_the_command_prints_measures_and_goes_on_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, and_then in (("a", ""), ("b", ASKS), ("c", RAISES)):
        sample(tmp_path, name, and_then)
    out = tmp_path / "results"
    arguments = ["programs", "--graphnet", str(tmp_path), "--target", "aot", "--target", "torch-aot-eager"]
    arguments += ["--out", str(out), "--seed", "5"]
    words, times, others, reasons = tables(capsys, *arguments)
    assert words["title"].startswith("GraphNet, seed 5")
    rows = {row[0]: dict(zip(words["columns"][1:], row[1:], strict=True)) for row in words["rows"]}
    assert rows["aot"]["run"] == 2
    assert (rows["aot"]["as eager"], rows["aot"]["refused"], rows["aot"]["as eager, %"]) == (1, 1, 50.0)
    assert rows["torch-aot-eager"]["as eager"] == 2
    assert times["columns"] == ["target", "median", "to torch-aot-eager"]
    assert times["rows"][0][2] > 0 and times["rows"][1][2] == pytest.approx(1)
    assert others["rows"][0][:3] == ["source/b", "aot", "refused"]
    assert reasons["rows"] == [["eager raises", 1]]

    def nothing(work: list[Work], *_: Any) -> list[Any]:
        assert work == []
        return []

    monkeypatch.setattr(programs, "run_all", nothing)
    assert tables(capsys, *arguments)[0] == words


def test_each_beginning_of_a_sample_is_a_sample() -> None:
    names = [f"{i}" for i in range(50)]
    drawn = draw_sample(names, 20, 1)
    assert draw_sample(names[::-1], 10, 1) == drawn[:10]
    assert len(set(drawn)) == 20 and drawn != draw_sample(names, 20, 2)
    assert sorted(draw_sample(names, None, 1)) == sorted(names)


def test_measures() -> None:
    results = [
        Result("a", "aot", "as eager", "", 1.0),
        Result("a", "torch-aot-eager", "as eager", "", 4.0),
        Result("b", "aot", "otherwise", "strides", 2.0),
        Result("b", "torch-aot-eager", "as eager", "", 2.0),
        Result("c", "aot", "wrong", "values", 9.0),
        Result("c", "torch-aot-eager", "as eager", "", 1.0),
        Result("d", "aot", NOT_RUN, "eager raises"),
    ]
    targets = ["aot", "torch-aot-eager"]
    (row, _) = summarize(results, targets, "").rows
    assert row[:2] == ("aot", 3)
    assert dict(zip(WORDS, row[2:-1], strict=True))["wrong"] == 1
    assert row[-1] == pytest.approx(100 / 3)
    ours, stock = compare_compile_times(results, targets).rows
    assert ours == ("aot", 1.5, pytest.approx(0.5))  # of a quarter and one
    assert stock == ("torch-aot-eager", 2.0, pytest.approx(1.0))
