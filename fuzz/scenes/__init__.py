"""The generator's scenes: a motif, arguments that it has a place for, and what shows it after the call.

What goes wrong may want three things at once: how some arguments lie, a few statements on them, and a step or
a later call that differs in one way. Each is drawn as ever, but together. What statements there are besides,
and which operators and sizes, is left to chance.
"""

from __future__ import annotations

from fuzz.scenes import calls, derivatives, keeping
from fuzz.scenes.scene import Scene

SCENES: tuple[Scene, ...] = (*calls.SCENES, *derivatives.SCENES, *keeping.SCENES)
