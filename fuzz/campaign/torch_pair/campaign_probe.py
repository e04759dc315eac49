"""Campaign probe: check, in a process of its own, whether an interpreter can run a campaign.

fingerprint = require_campaign(find_interpreter("old/bin/python"), folder, configuration)
"""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.campaign.configuration import Configuration, to_json
from fuzz.errors import InterpreterError
from fuzz.interpreters import Interpreter, ask_interpreter, environment_with_source

_TRY = """
import json, sys
from fuzz.campaign import driver
from fuzz.campaign.configuration import from_json, generator_fingerprint
from fuzz.campaign.devices import require_device
from fuzz.errors import FuzzError
from fuzz.interpreters import ANSWER_MARK
from fuzz.targets.catalog import usable_targets
configuration = from_json(json.loads(sys.argv[1]))
try:
    require_device(configuration.device)
    usable_targets(list(configuration.targets))
    found = {"generator": generator_fingerprint(configuration)}
except FuzzError as error:
    found = {"error": str(error)}
print("\\n" + ANSWER_MARK + json.dumps(found))
"""


def require_campaign(interpreter: Interpreter, source: Path, configuration: Configuration) -> str:
    """Check that an interpreter can run a campaign with the aotfuzz in the folder `source`.

    Returns:
        The fingerprint of its generator. Two interpreters with equal fingerprints make the same programs.

    Raises:
        InterpreterError: it cannot import this aotfuzz, or a target cannot run there.
    """
    found = ask_interpreter(
        interpreter.python,
        ["-P", "-c", _TRY, json.dumps(to_json(configuration))],
        failure="cannot run aotfuzz",
        environment=environment_with_source(source),
    )
    if "error" in found:
        raise InterpreterError(f"{interpreter.python} (torch {interpreter.torch}): {found['error']}")
    return str(found["generator"])
