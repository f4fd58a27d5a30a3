import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_carries_the_layer_alone() -> None:
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["budgetformer"]
    assert PROJECT["project"]["dependencies"] == ["torch>=2.10"]


def test_every_requirement_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {normal(line.split("==")[0]) for line in lines}
    extras = PROJECT["project"]["optional-dependencies"].values()
    required = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], *chain.from_iterable(extras)]
    assert {normal(re.split(r"[<>=]", name)[0]) for name in required} <= pinned


def test_every_line_of_the_changelog_is_tagged() -> None:
    lines = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("- ")]
    assert lines
    assert all(re.match(r"- \[(code|results)\] ", line) for line in lines)
