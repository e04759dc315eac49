"""`aotfuzz doctor` and `traits`: whether this project works with the torch that is here, and what programs
have."""

from __future__ import annotations

import argparse

from tabulate import tabulate

from fuzz.commands.output import FINDINGS, NOTHING_NEW, people, say, say_object


def doctor(options: argparse.Namespace) -> int:
    """Examine the installation. Exit status 1 if something is missing or wrong."""
    from fuzz.diagnosis.diagnosis_text import diagnosis_json, diagnosis_text, problems
    from fuzz.diagnosis.examine import examine_installation

    diagnosis = examine_installation()
    say(diagnosis_text(diagnosis), people(options))
    if options.json:
        say_object(diagnosis_json(diagnosis))
    return FINDINGS if problems(diagnosis) else NOTHING_NEW


def traits(options: argparse.Namespace) -> int:
    """List the traits of programs, and the capability that each belongs to."""
    from fuzz.features.capabilities import CAPABILITIES
    from fuzz.features.traits import described_traits
    from fuzz.patterns import matches

    rows = [
        {
            "name": name,
            "description": description,
            "capabilities": [
                capability
                for capability, patterns in CAPABILITIES.items()
                if any(matches(pattern, name) for pattern in patterns)
            ],
        }
        for name, description in described_traits().items()
    ]
    table = [(row["name"], ", ".join(row["capabilities"]), row["description"]) for row in rows]
    say(tabulate(table, headers=("trait", "capability", "what it is"), tablefmt="plain"), people(options))
    if options.json:
        say_object({"traits": rows})
    return NOTHING_NEW
