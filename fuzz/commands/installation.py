"""`aotfuzz doctor`: whether this project works with the torch that is installed here."""

from __future__ import annotations

import argparse

from fuzz.commands.output import FINDINGS, NOTHING_NEW, people, say, say_object


def doctor(options: argparse.Namespace) -> int:
    """Examine the installation; 1 if something is missing or wrong."""
    from fuzz.diagnosis.diagnosis_text import diagnosis_json, diagnosis_text, problems
    from fuzz.diagnosis.examine import examine_installation

    diagnosis = examine_installation()
    say(diagnosis_text(diagnosis), people(options))
    if options.json:
        say_object(diagnosis_json(diagnosis))
    return FINDINGS if problems(diagnosis) else NOTHING_NEW
