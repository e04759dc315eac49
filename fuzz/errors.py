"""Errors: one exception class for each reason why a fuzzing run fails.

All are mistakes or circumstances that a user can act on, such as a misspelt target, a damaged corpus file or
a full disk. So the command line prints their text without a traceback and exits with status 2.
Invariant: differences between eager and a target are findings, never exceptions.
"""

from __future__ import annotations

from pathlib import Path

from fuzz.safe_text import one_line


class FuzzError(Exception):
    """The base class. The text says what was wrong, where, and what to do."""


class TargetError(FuzzError):
    """A target does not exist, cannot be imported, or cannot work on this machine."""


class CorpusError(FuzzError):
    """A corpus file is damaged, hostile or of another format.

    >>> str(CorpusError(Path("a.json"), "program.storages[0].size", "too large", "make it smaller"))
    'a.json: at program.storages[0].size: too large (make it smaller)'
    """

    def __init__(self, file: Path, place: str, what: str, hint: str = "") -> None:
        """`place` is the position in the document ("" for the whole file)."""
        self.file = file
        self.place = place
        self.what = what
        self.hint = hint
        where = f"at {place}: " if place else ""
        super().__init__(one_line(f"{file}: {where}{what}" + (f" ({hint})" if hint else "")))


class CapabilityFileError(FuzzError):
    """A capability file cannot be read, or has an unknown entry.

    >>> str(CapabilityFileError(Path("mine.toml"), "dtype.float31", "no such trait", "float32 is one"))
    'mine.toml: at dtype.float31: no such trait (float32 is one)'
    """

    def __init__(self, file: Path, key: str, what: str, hint: str) -> None:
        """`key` is the key's place in the file ("" for the whole file)."""
        self.file, self.key = file, key
        where = f"at {key}: " if key else ""
        super().__init__(one_line(f"{file}: {where}{what} ({hint})"))


class StoreError(FuzzError):
    """The folder of a campaign cannot be written (any more), or already holds another campaign."""


class PoolError(FuzzError):
    """Workers cannot be started at all: the installation is at fault, not a program under test."""


class WorkersLost(PoolError):
    """The source of workers, which is a fork server or a cluster's scheduler, has died during a campaign."""


class ConfigurationError(FuzzError):
    """The options of a run contradict each other or ask for what this machine does not have."""


class DeviceError(FuzzError):
    """A program is for a device that this machine does not have, or that torch does not see."""


class InterpreterError(FuzzError):
    """A Python interpreter that was named does not run, or lacks torch, a package or a target."""


class InstallError(FuzzError):
    """A version of torch cannot be installed: pip failed, or there is no room for it."""


class ScriptError(FuzzError):
    """A script cannot be bisected: it is not wrong, does not compile, or does not end the same way twice."""


class CommitsError(FuzzError):
    """A repository cannot be bisected: no such commit, the good one is wrong or the bad one right, or git
    fails."""


class MinifyError(FuzzError):
    """The base class of reasons why a user's function cannot be made smaller."""


class FunctionRaises(MinifyError):
    """The function raises in eager, so there is nothing to compare a compiler with."""


class NoDifference(MinifyError):
    """The target does what eager does, as far as can be determined, or refuses the function on purpose.

    `proves_nothing` says that it refuses, or that eager's own numbers are noise.
    """

    def __init__(self, message: str, *, proves_nothing: bool = False) -> None:
        super().__init__(message)
        self.proves_nothing = proves_nothing


class CannotRecord(MinifyError):
    """The function does, gets or returns something that cannot be written as calls of torch's functions."""


class RecordingDiffers(MinifyError):
    """The recorded calls do not do what the function does, because some of its effects were not seen."""


class DifferenceLost(MinifyError):
    """The target differs on the function, but not, or in another way, on its recorded calls.

    Its mistake is in the code around the calls.
    """
