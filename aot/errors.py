"""One exception class per reason; each tells what was wrong, where, and what to do.

`AotError` is the root. `Unsupported` is the root of every *refusal*: something the compiler knows that it
cannot honour, raised before anything of the caller's has been changed. What is refused, and why, is
listed in ``docs/reference/refusals.md``; a test holds that list to the classes below.

Example:
    >>> import aot
    >>> try:
    ...     aot.aot_function(lambda x: x.item(), aot.nop)(torch.ones(()))
    ... except aot.Unsupported as refusal:
    ...     print(type(refusal).__name__)
    DataDependentValue
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

RECORDING: list[int] = []
"""The threads that are recording now: empty where none is, which costs less to ask than `is_tracing`."""


class _ThreadRefusal(threading.local):
    """What a thread that records has refused; None in others."""

    refusals: list[Unsupported] | None = None


_made = _ThreadRefusal()


class AotError(Exception):
    """Root of everything that this library raises on its own account."""


class BackendError(AotError):
    """A graph compiler broke its side of the agreement: it returned something that cannot be called, or a
    compiled graph returned another number of results than its graph has outputs."""


class DataSizesDiffer(AotError):
    """A graph has computed other numbers from the values of its inputs (how many elements a mask selects)
    than it was compiled for. It is seen by nobody: the call is made by what is compiled for these."""


class AssumptionViolated(AotError):
    """With the setting `debug_assert`: a call, or a compiled graph, is given or makes something else than
    what was found when it was compiled. It is a fault of a graph compiler, of a partitioner or of this
    library; what the call has changed by then stays changed."""


class MissingPackage(AotError):
    """What was asked for is in another package of this project, or one that this needs, and that is not
    installed."""


class PartitionError(AotError):
    """A joint graph cannot be cut: it is not of the form that `aot.default_partition` documents, or the
    backward needs a value that can neither be saved nor recomputed; or an option has no meaning."""


class RecompileWarning(UserWarning):
    """A function is compiled again and again for calls that are alike, because something that it reads
    besides its arguments keeps changing."""


class FallbackWarning(UserWarning):
    """A function runs as in eager, because it was refused and ``on_unsupported="eager"`` holds. The text is
    the refusal's."""


class CacheWarning(UserWarning):
    """The cache on disk has an entry that cannot be used, or its folder cannot be read or written to. What
    was to be found there is compiled."""


class UntestedTorchWarning(UserWarning):
    """The installed torch is newer than what this library was tested with. `aotfuzz doctor` tells what of
    torch's private API is missing in it, or has another signature."""


class Unsupported(AotError):
    """Root of the refusals: the compiled call would be distinguishable from eager, so it is not made.

    Attributes:
        acted: the call had acted outside (it had printed) when it was refused: nothing else can answer it.
    """

    acted = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if _made.refusals is not None:
            _made.refusals.append(self)


@contextlib.contextmanager
def recording_refusals() -> Iterator[None]:
    """While this lasts, a refusal that is made in this thread holds, even where somebody catches it.

    Raises:
        Unsupported: the first that was made, unless one is on its way already.
    """
    before = _made.refusals
    refusals: list[Unsupported] = []
    _made.refusals = refusals
    RECORDING.append(threading.get_ident())
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:
        if refusals:
            raise refusals[0] from error
        raise
    finally:
        RECORDING.remove(threading.get_ident())
        _made.refusals = before
    if refusals:
        raise refusals[0]


def is_tracing() -> bool:
    """Whether this thread is recording: a function, or a backward."""
    return _made.refusals is not None


class UnsupportedOption(Unsupported):
    """An option of an entry point has a value that is not supported."""


class UnsupportedArgument(Unsupported):
    """An argument is of a kind that has no specialization key yet (a tensor subclass, a sparse or quantized
    tensor, an arbitrary object)."""


class UnsupportedOutput(Unsupported):
    """The function returned something that cannot be made again on a later call (an arbitrary object, a
    sparse tensor, a tensor with a Python attribute)."""


class UnsupportedOperation(Unsupported):
    """An operation cannot be recorded: it has no meta kernel, or takes an argument that no graph can
    hold; or the function runs code that it makes (`eval`, `exec`)."""


class DataDependentValue(Unsupported):
    """The function does one thing or another as the *value* of a tensor is (`bool`, a loop over `item`), or
    an output's shape depends on one where that cannot be recorded."""


class ClosureTensor(Unsupported):
    """The function reads a tensor that is not among its arguments. Freezing it would make later calls stale;
    pass it as an argument."""


class ClosureMutation(Unsupported):
    """The function changes a container among its arguments, or its backward something that it reads (a
    variable of its closure, an attribute, the state of an iterator). A compiled call runs none of its Python,
    and would leave it as it is."""


class EscapedTensor(Unsupported):
    """The function stored a tensor somewhere else than in its result (a list outside, an attribute of a
    module): a later call would not store it again, and this one stored none that has values."""


class StorageMutation(Unsupported):
    """`set_`, `resize_` or `.data =` replaced or resized the storage of a tensor."""


class SubclassMutation(Unsupported):
    """The function changes something about an argument that is a tensor subclass, other than its elements,
    which the wrapper cannot repeat: its shape, what it is made of, its place in the autograd graph."""


class UnsupportedTangent(Unsupported):
    """A backward is given a gradient of another type, or made otherwise, than it was recorded for, which the
    tensor subclass does not coerce, and cannot be recorded again for that; or one with other strides, where
    it raises for those that it was recorded for and not for all."""


class AutogradStateMutation(Unsupported):
    """`requires_grad_`, `detach_` or `backward` inside the function changed an argument's place in the
    autograd graph in a way that the wrapper cannot repeat."""


class RandomStateMutation(Unsupported):
    """The function sets a random generator's state, other than by saving and restoring it around draws that
    it repeats; or its backward draws; or it draws random numbers that are not torch's."""


class UnsupportedHook(Unsupported):
    """The function registers a hook on a tensor of the caller's (an argument, a result, a view of one), or
    one that is there for its side effects."""


class LeafCreatedInside(Unsupported):
    """An output requires grad through a leaf that the function itself created."""


class InferenceModeUnsupported(Unsupported):
    """A call in inference mode runs something outside of it, or inference tensors and others are to share
    memory."""


class AutocastCacheUnsupported(Unsupported):
    """A function writes to a float32 leaf before and after autocast casts it, so that what autocast keeps of
    it until its outermost region ends can be told neither before the call nor after."""


class DoubleBackwardUnsupported(Unsupported):
    """`create_graph=True`, or a backward under another autocast state than the forward, or one whose Python
    reads what has changed since, where the backward would have to be recorded again and cannot be: it needs a
    value that the forward does not save, the function registers hooks, or a custom `autograd.Function` is not
    known to be linear in its gradient."""
