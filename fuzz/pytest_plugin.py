"""pytest plugin: the fixture `compiled_like_eager`, which holds a compiled function against eager.

    def test_norm(compiled_like_eager):
        compiled_like_eager(norm, torch.randn(8, 4, requires_grad=True), target="torch-inductor")

pytest loads it wherever aotfuzz is installed, so that nothing but pytest is imported before the fixture is
used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from fuzz.targets.target import Target

    AnyTarget = str | Callable[[Callable[..., Any]], Callable[..., Any]] | Target

DEFAULT_TARGET = "torch-inductor"


class CompiledLikeEager(Protocol):
    """What the fixture gives."""

    def __call__(
        self, function: Callable[..., Any], *args: Any, target: AnyTarget = ..., evaluations: int = ...
    ) -> None:
        """Fail the test where a target does something else than eager with `function(*args)`.

        Args:
            function: a function or a module, of tensors, numbers, and tuples, lists and dicts of them.
            target: a name (`aotfuzz targets`, `package.module:function`), a function that takes a function
                and returns it compiled, or a `fuzz.Target`; default "torch-inductor".
            evaluations: how many smaller functions are compiled at most to find the smallest that differs.
        """


@pytest.fixture
def compiled_like_eager() -> CompiledLikeEager:
    """A function that fails the test where a compiled function does something else than eager.

    Everything in docs/reference/contract.md is compared: results, arguments, gradients, aliasing, random
    state, errors. The failure says which clause is broken, in a sentence, and has a script that shows it
    with torch and the compiler alone. A target that refuses the function, or a function whose own numbers
    are noise, proves nothing: the test is skipped, with the reason. Errors of `fuzz.minify.minify`, such
    as `FunctionRaises`, are raised."""
    return _require_compiled_like_eager


def _require_compiled_like_eager(
    function: Callable[..., Any],
    *args: Any,
    target: AnyTarget = DEFAULT_TARGET,
    evaluations: int = 100,
) -> None:
    __tracebackhide__ = True
    from fuzz.errors import NoDifference
    from fuzz.minify import minify
    from fuzz.safe_text import escape_unprintable

    try:
        minified = minify(function, args, target, evaluations=evaluations)
    except NoDifference as same:
        if same.proves_nothing:
            pytest.skip(str(same))
        return
    findings = "\n".join(map(str, minified.findings))
    shown = "" if minified.shown else "# (It does not show it in this process.)\n"
    text = f"{findings}\n\nThis script shows it, and exits with 1 while it does:\n\n{shown}{minified.text}"
    pytest.fail(escape_unprintable(text), pytrace=False)
