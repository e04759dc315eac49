"""Scenes: each comes in its whole, with what shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.choices import SeededChoices
from fuzz.features.program_features import features
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.generate.scenes import SCENES
from fuzz.generate.scenes.scene import Scene
from fuzz.ir.nodes import View, Write
from fuzz.program.decode import Program, check

PROGRAMS = 60


@pytest.mark.parametrize("number", range(len(SCENES)))
def test_a_scene_is_there_in_its_whole(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENES[number]
    whole = 0
    for program in _programs(scene, monkeypatch):
        check(program)
        there = bool(program.statements)
        if scene.change is not None:
            there = there and len(program.later) == 1
        if scene.steps is not None:
            there = there and bool(program.scenario.steps)
        whole += there
    assert whole > PROGRAMS // 2


@pytest.mark.parametrize(
    "motif, feature",
    [("write_and_lay_out_anew", "metadata: past a history"), ("detach_beside_write", "detach")],
)
def test_a_motif_of_a_scene_finds_what_it_wants(
    motif: str, feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = [scene for scene in SCENES if scene.motif.__name__ == motif]
    assert scenes
    for scene in scenes:
        found = sum(
            feature in features(program)
            or any(statement.operator.startswith(feature) for statement in program.statements)
            for program in _programs(scene, monkeypatch)
        )
        assert found > PROGRAMS // 4


def test_what_is_kept_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = [
        scene for scene in SCENES if scene.motif.__name__ in ("save_two_aliases", "recompute_of_written")
    ]
    assert len(scenes) > 2
    for scene in scenes:
        programs = list(_programs(scene, monkeypatch))
        assert sum(any(isinstance(s, Write) for s in p.scenario.steps) for p in programs) > PROGRAMS // 2


def test_what_lies_before_an_argument_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    (scene,) = (scene for scene in SCENES if scene.motif.__name__ == "_scene_of_saved_surroundings")
    shown = 0
    for program in _programs(scene, monkeypatch):
        (view,) = program.arguments
        assert isinstance(view, View)
        for statement in program.statements:
            if statement.operator == "as_strided":
                offset = dict(statement.attributes)["offset"]
                assert isinstance(offset, int)
                shown += offset < view.offset
    assert shown > PROGRAMS // 4


def _programs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setattr("fuzz.generate.SCENES", (scene,))
    return (generate(SeededChoices(7, index), PROFILES["scenes"]) for index in range(PROGRAMS))
