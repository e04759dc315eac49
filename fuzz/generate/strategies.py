"""`fuzz.programs`: the generator as a public Hypothesis strategy."""

from __future__ import annotations

import logging

from hypothesis import strategies as st
from hypothesis.vendor import pretty

from fuzz.choices import HypothesisChoices
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.program.decode import Program
from fuzz.program.printer import render

__all__ = ["programs"]

# What torch writes with TORCH_TRACE. It is no log for people.
_TORCH_TRACE = logging.getLogger("torch.__trace")


def programs(profile: str | Profile = "mixed") -> st.SearchStrategy[Program]:
    """Programs that mutate and alias, for a property test of a compiler.

    `profile` is one of `fuzz.generate.profiles.PROFILES`, by name, or one of your own. Every example prints
    as the Python source that runs (`fuzz.program.printer.render`), and shrinks. An unknown name raises
    ValueError.

    Programs of "python", and some of "mixed", keep state from one call to the next: load one for each side.

    A test that a compiler changes the data of arguments as eager does::

        import torch
        from hypothesis import given, settings
        from fuzz import load, programs

        @given(programs("aliasing"))
        @settings(deadline=None)
        def test_arguments_are_written_to(program):
            loaded = load(program)
            compiled = torch.compile(loaded.f, backend="aot_eager")
            after = []
            for function in (loaded.f, compiled):
                args, leaves, tensors = loaded.make()
                torch.manual_seed(0)  # programs draw
                try:
                    with torch.enable_grad():  # a program may leave another grad mode behind
                        function(*args)
                except Exception:
                    return  # a few programs are refused by eager, on purpose
                after.append(tensors)
            for name in after[0]:
                torch.testing.assert_close(after[0][name], after[1][name], equal_nan=True)
    """
    if isinstance(profile, str) and profile not in PROFILES:
        raise ValueError(f"no profile is named {profile!r}; there are {', '.join(PROFILES)}")

    @st.composite
    def drawn(draw: st.DrawFn) -> Program:
        _keep_trace_out_of_test_report()
        return generate(HypothesisChoices(draw), profile)

    return drawn()


def _print_program(program: Program, printer: pretty.RepresentationPrinter, cycle: bool) -> None:
    """Print the source of an example, as Hypothesis shows one that fails."""
    for line in render(program).rstrip("\n").splitlines():
        printer.break_()
        printer.text(line)


pretty.for_type_by_name(Program.__module__, Program.__qualname__, _print_program)


def _keep_trace_out_of_test_report() -> None:
    """Take pytest's handlers off the logger of torch's trace.

    pytest 9 attaches some to each logger that does not propagate. A failing test of a compiler would show
    thousands of empty lines of it, and torch would write the trace because it has a handler.
    """
    for handler in tuple(_TORCH_TRACE.handlers):
        if type(handler).__module__.startswith("_pytest."):
            _TORCH_TRACE.removeHandler(handler)
