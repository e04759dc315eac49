"""`fuzz.programs`: the generator as a public Hypothesis strategy."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz.choices import HypothesisChoices
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.program.decode import Program

__all__ = ["programs"]


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
        return generate(HypothesisChoices(draw), profile)

    return drawn()
