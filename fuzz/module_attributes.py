"""Module attributes: load what a user names as `package.module:attribute`, from the current folder too.

load_attribute("target 'mine:compile'", "mine:compile", TargetError)
"""

from __future__ import annotations

import importlib
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Any

from fuzz.errors import FuzzError
from oracles.object_names import class_name, message_of


def load_attribute(what: str, path: str, error_class: type[FuzzError]) -> Any:
    """Load `package.module:attribute`. The current folder is importable, as for `python -m`.

    Raises an `error_class`, which begins with `what`, if there is no such module or attribute, or if the
    module fails.
    """
    module_name, _, attribute = path.partition(":")
    words = f"{module_name}.{attribute}".split(".")
    if not all(word.isidentifier() and not iskeyword(word) for word in words):
        raise error_class(f"{what} is not of the form package.module:function")
    here = make_current_folder_importable()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise error_class(
                f"{what}: no module named {error.name!r} (looked in {here} and the installed packages)"
            ) from error
        raise error_class(f"{what}: importing {module_name} failed: {message_of(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # for example a script that ends with sys.exit()
        said = f"{class_name(type(error))}: {message_of(error)}"
        raise error_class(f"{what}: importing {module_name} failed: {said}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            raise error_class(f"{what}: {module_name} has no attribute {attribute!r}") from error
    return found


def make_current_folder_importable() -> str:
    """Make modules of the current folder importable, as for `python -m`, and return its path."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return here
