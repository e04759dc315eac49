"""AOTAutograd refusals: exceptions by which torch's own compilers decline a program on purpose.

A row has the exact type and the beginning of the message, as torch 2.11 to 2.15 raise them, and the name by
which a campaign counts the refusal. Only messages that call something unsupported are here. Any other
exception is a finding if eager raises none.
"""

from __future__ import annotations

from typing import NamedTuple

from oracles.object_names import class_name, message_of


class DeclaredRefusal(NamedTuple):
    """An exception by which a compiler declines a program on purpose."""

    type: str
    message: str
    reason: str


AOT_AUTOGRAD: tuple[DeclaredRefusal, ...] = (
    DeclaredRefusal(
        "RuntimeError",
        "torch.compile with aot_autograd does not currently support double backward",
        "double backward",
    ),
    DeclaredRefusal(
        "AssertionError",
        "aot_autograd() does not yet handle non-differentiable view input mutations.",
        "an input mutation of views that are not differentiable",
    ),
    DeclaredRefusal(
        "AssertionError",
        "aot_autograd() does not yet handle input mutations on views with different dtypes.",
        "an input mutation of views of different dtypes",
    ),
    DeclaredRefusal(
        "RuntimeError",
        "Metadata mutations are currently not allowed on tensor subclasses",
        "a metadata mutation of a tensor subclass",
    ),
    DeclaredRefusal(
        "AssertionError",
        "Found a graph input that had its metadata mutated in the backward. This is not supported",
        "a metadata mutation of an input in the backward",
    ),
    DeclaredRefusal(
        "AssertionError",
        "Found a graph input that had storage resizing in the backward. This is not supported",
        "an input that is resized in the backward",
    ),
    DeclaredRefusal(
        "AssertionError",
        "Found an input to the backward that had metadata mutated during the backward pass. "
        "This is not supported",
        "a metadata mutation of a gradient",
    ),
    DeclaredRefusal(
        "AssertionError",
        "a backward input that had data mutated in an autograd-aware way. This is not supported",
        "a differentiable mutation of a gradient",
    ),
    DeclaredRefusal(
        "RuntimeError",
        "Encountered duplicate inputs that are mutated in the graph, but at least one input/output to the "
        "graph is a tensor subclass. This is not supported today.",
        "a mutated input that is passed twice, with tensor subclasses",
    ),
    DeclaredRefusal(
        "AssertionError",
        "torch.compile is currently being used with tensor subclass inputs. We are attempting to a compile a "
        "graph with two graph outputs that alias one another",
        "outputs that alias one another, with tensor subclasses",
    ),
)
# Dynamo's exception for a backend that has raised.
_BACKEND_FAILED = "torch._dynamo.exc.BackendCompilerFailed"


def aot_autograd_refusal(error: BaseException) -> str | None:
    """The reason for which AOTAutograd declined a program; None for any other exception.

    >>> aot_autograd_refusal(RuntimeError(AOT_AUTOGRAD[0].message))
    'double backward'
    """
    inner = getattr(error, "inner_exception", None)
    if class_name(type(error)) == _BACKEND_FAILED and isinstance(inner, BaseException):
        error = inner
    name = class_name(type(error))
    message = " ".join(message_of(error).split())
    for row in AOT_AUTOGRAD:
        if row.type == name and message.startswith(row.message):
            return row.reason
    return None
