import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def test_the_wheel_carries_the_layer_alone() -> None:
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["budgetformer"]
    assert PROJECT["project"]["dependencies"] == ["torch>=2.10"]


def test_every_requirement_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    required = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], *chain.from_iterable(extras)]
    names = {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in required}
    assert names | {"ruff", "tox"} <= pins().keys()


def test_hooks_use_the_pinned_versions() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    versions = re.findall(r'"([\w.-]+)==([\w.]+)"', hooks)
    assert versions
    assert all(pins()[normal(name)] == version for name, version in versions)


def test_every_line_of_the_changelog_is_tagged() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if re.match(r"\s*[-*+] ", line)]
    assert lines
    assert all(re.match(r"- \[(code|results)\] ", line) for line in lines)
