"""Lightning Thunder, by `thunder.jit`: forward, and backward by an autograd function of its own.

A program that its interpreter or its tables of operators cannot take is a refusal.
"""

from __future__ import annotations

from fuzz.targets.adapters.adapter import Adapter, imports
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Function, Target


def _compile(function: Function) -> Function:
    import thunder

    compiled: Function = thunder.jit(function)
    return compiled


def _refusal(error: BaseException) -> str | None:
    """The refusal of Thunder: an error class of its interpreter, or an AttributeError of its tensor proxy."""
    if isinstance(error, NotImplementedError) or str(error).startswith("Unknown attribute"):
        return "not implemented"
    return "not interpreted" if type(error).__name__ in _ERRORS else None


_ERRORS = ("InterpreterError", "ThunderSharpEdgeError")


TARGETS = {
    "thunder": Adapter(
        Target(
            "thunder",
            "Lightning Thunder's jit, with its executors for the CPU",
            _compile,
            _refusal,
            available=imports("thunder", "thunder", "lightning-thunder"),
            clauses=clauses_of(("results", "gradients"), without=("lifetime", "refusals", "threads")),
            lacks=("complex", "cuda", "python", "random", "subclass", "metadata"),
        ),
        "import thunder",
        "thunder.jit(f)",
        ("lightning-thunder",),
    )
}
