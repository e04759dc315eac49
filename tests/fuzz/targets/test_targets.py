"""Targets: the shipped ones compile, anybody's is found by its path, and a wrong name says what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fuzz.errors import TargetError
from fuzz.execute.case import execute
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import find_target, usable_targets
from tests.support.fuzz.small_programs import SINE
from tests.support.versions import needs_torch


def _two_results(value: torch.Tensor) -> tuple[torch.Tensor, int]:
    return value.mul(2), 3


@pytest.mark.parametrize("name", [name for name in SHIPPED if not name.startswith("torch-inductor")])
def test_a_shipped_target_computes_values_gradients_and_structure(name: str) -> None:
    target = find_target(name)
    target.prepare()
    value = torch.arange(3.0, requires_grad=True)
    result = target.compile(_two_results)(value)
    assert type(result) is tuple and result[1] == 3
    assert torch.equal(result[0], torch.tensor([0.0, 2.0, 4.0]))
    result[0].sum().backward()
    assert torch.equal(value.grad, torch.full((3,), 2.0))
    target.reset()


@pytest.mark.parametrize("name", ["aot-min-cut", "aot-recompute", "aot-rng"])
def test_a_target_that_overwrites_what_is_donated_takes_all_that_eager_does(name: str) -> None:
    """Zeros that have no memory, and second derivatives."""
    for function in (torch.sgn, torch.sin):
        value = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad(
            find_target(name).compile(function)(value).sum(), value, create_graph=True
        )
        assert torch.equal(gradient, torch.zeros(3) if function is torch.sgn else value.cos())
        if gradient.requires_grad:
            assert torch.equal(torch.autograd.grad(gradient.sum(), value)[0], -value.sin())
    value = torch.ones(3, requires_grad=True)
    find_target(name).compile(torch.sgn)(value).sum().backward()
    assert torch.equal(value.grad, torch.zeros(3))


def test_every_case_is_compiled_anew_after_a_reset() -> None:
    target = find_target("torch-dynamo")
    target.prepare()
    for number in range(20):
        scope: dict[str, object] = {}
        exec(f"def f(value): return value + {number}", scope)
        assert target.compile(scope["f"])(torch.zeros(1)).item() == number  # type: ignore[arg-type]
        target.reset()


@pytest.mark.parametrize("name", ["torch-inductor", "aot-inductor"])
def test_inductor_chooses_nothing_by_timing(name: str) -> None:
    from torch._inductor import config

    with config.patch(deterministic=False):
        find_target(name).prepare()
        assert config.deterministic


@pytest.mark.parametrize("name", ["torch-inductor", "torch-inductor-strict"])
def test_inductor_draws_as_eager_does_and_nobody_else_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.append(options) or function)
    find_target(name).prepare()
    find_target(name).compile(torch.sin)
    (options,) = given
    assert options["options"]["fallback_random"] is True  # type: ignore[index]
    assert not config.fallback_random


@needs_torch("<2.15", "from torch 2.15 on FX tells the thread that traces apart")
def test_dynamo_refuses_while_another_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes any thread for the one that FX traces in (pytorch issue 126024)."""
    target = find_target("aot-compile")
    target.prepare()
    compiled = target.compile(torch.sin)
    with monkeypatch.context() as patch:
        patch.setattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", True)
        with pytest.raises(RuntimeError) as raised:
            compiled(torch.ones(2))
    assert target.refusal(raised.value) is not None and find_target("aot").refusal(raised.value) is None
    target.reset()


def test_only_this_projects_own_refusals_are_refusals() -> None:
    from aot.errors import Unsupported

    class Reason(Unsupported):
        def __init__(self) -> None:
            Exception.__init__(self, "no")

    assert find_target("aot").refusal(Reason()) == "Reason"
    assert find_target("aot").refusal(RuntimeError("no")) is None
    assert find_target("torch-aot-eager").refusal(Reason()) is None


def test_a_target_of_ones_own_is_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_compiler_a").mkdir()
    (tmp_path / "own_compiler_a" / "parts.py").write_text(
        "class Backend:\n    compile = staticmethod(lambda f: f)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    target = find_target("own_compiler_a.parts:Backend.compile")
    assert target.compile(len) is len
    assert target.refusal(RuntimeError()) is None


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("torch-aot-eagre", "shipped are aot, "),
        ("no_such_module:f", "no module named 'no_such_module'"),
        ("os.no_such_part:f", "no module named 'os.no_such_part'"),
        ("os:no_such_function", "os has no attribute 'no_such_function'"),
        ("os:sep", "must be a function"),
        (":f", "not of the form package.module:function"),
        ("os:", "not of the form package.module:function"),
        ("os:system('true')", "not of the form package.module:function"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, complaint: str) -> None:
    with pytest.raises(TargetError) as caught:
        find_target(name)
    assert complaint in str(caught.value)
    assert name.split(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("import not_there_at_all", "No module named 'not_there_at_all'"), ("1 / 0", "ZeroDivisionError")],
)
def test_a_module_that_fails_says_how(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"own_compiler_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TargetError, match="importing") as caught:
        find_target(f"{name}:f")
    assert complaint in str(caught.value)


def test_a_target_that_cannot_work_here_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TargetError, match="no-such-compiler"):
        usable_targets(["eager", "torch-inductor"])


def test_a_target_cannot_work_without_its_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_targets.py").write_text(
        "from fuzz import Target\n"
        "misspelt = Target('', '', len, controls=('torch-dynamite',))\n"
        "elsewhere = Target('', '', len, controls=('torch-inductor',))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TargetError, match="torch-dynamite"):
        usable_targets(["my_targets:misspelt"])
    with pytest.raises(TargetError, match="no-such-compiler"):
        usable_targets(["my_targets:elsewhere"])


def test_usable_targets_are_listed_once_and_in_order() -> None:
    assert [target.name for target in usable_targets(["eager", "aot", "eager"])] == ["eager", "aot"]


def test_eager_runs_on_another_number_of_threads_until_it_is_reset() -> None:
    target, before = find_target("eager-threads"), torch.get_num_threads()
    assert target.compile(torch.get_num_threads)() == (1 if before > 1 else 2)
    target.reset()
    assert torch.get_num_threads() == before
    assert execute(SINE, target).outcome == "agree"
