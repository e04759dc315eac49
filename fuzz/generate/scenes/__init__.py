"""The generator's scenes: a motif, arguments that it has a place for, and what shows it after the call.

What goes wrong may want three things at once: how some arguments lie, a few statements on them, and a step or
a later call that differs in one way. Each is drawn as ever, but together. What statements there are besides,
and which operators and sizes, is left to chance.
"""

from __future__ import annotations

from fuzz.generate.scenes import call_sequences, derivatives, saved_values
from fuzz.generate.scenes.scene import Scene

SCENES: tuple[Scene, ...] = (*call_sequences.SCENES, *derivatives.SCENES, *saved_values.SCENES)
