"""Imports point one way: reports -> suites -> baselines -> budgetformer, and from room to room within suites."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_USE: dict[str, set[str]] = {
    "budgetformer": set(),
    "baselines": {"budgetformer"},
    "suites": {"baselines", "budgetformer"},
    "reports": {"suites"},
}
ROOMS = ("records", "definitions", "data", "training", "measuring", "executions", "sweep", "benches", "commands")
"""Of ``suites``, in the order of the arrows: a room uses itself and those before it."""
APART = {("sweep", "executions"), ("commands", "benches")}
"""Neighbours in that order that know nothing of one another."""
FILES = [path for package in MAY_USE for path in sorted((ROOT / package).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, folder: tuple[str, ...] = ()) -> set[str]:
    """What a file names in its imports, wherever they stand, with the module it comes from; relative ones in full."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def wrong_arrows(module: str, names: set[str]) -> set[str]:
    """Of what a module imports, that which lies in a package or room that it may not enter."""
    package, *inside = module.split(".")
    room = inside[0] if inside else ""
    wrong = set()
    for name in names:
        used, *rest = name.split(".")
        if used in MAY_USE and used not in MAY_USE[package] | {package}:
            wrong.add(name)
        if used == "suites" and package == "reports" and rest[0] != "records":
            wrong.add(name)
        if used == package == "suites" and room in ROOMS:
            other = rest[0]
            if other not in ROOMS[: ROOMS.index(room) + 1] or (room, other) in APART:
                wrong.add(name)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    module = module_name(path)
    package, *inside = module.split(".")
    names = imports(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parent.parts)
    assert not wrong_arrows(module, names)
    used = {name.split(".")[0] for name in names}
    if package in ("budgetformer", "baselines"):
        assert used <= set(sys.stdlib_module_names) | {"torch", *MAY_USE}
    if package == "reports" or inside[:1] in ([], ["records"]):
        assert "torch" not in used or package == "budgetformer"


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("suites.data.tasks", "from suites.training.model import build_model", "suites.training.model.build_model"),
        ("suites.training.loop", "def f():\n    import suites.sweep.plan", "suites.sweep.plan"),
        ("suites.sweep.engine", "from suites.executions import grid", "suites.executions.grid"),
        ("suites.records.store", "from ..definitions.names import look_up", "suites.definitions.names.look_up"),
        ("reports.load", "from suites.definitions.recipe import Recipe", "suites.definitions.recipe.Recipe"),
        ("baselines.random_k", "import suites.records.record", "suites.records.record"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str, wrong: str) -> None:
    assert wrong_arrows(module, imports(source, tuple(module.split(".")[:-1]))) == {wrong}


def test_every_file_of_suites_is_in_a_room() -> None:
    outside = {path.relative_to(ROOT / "suites").as_posix() for path in (ROOT / "suites").glob("*.py")}
    assert outside == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in (ROOT / "suites").glob("*/__init__.py")} == set(ROOMS)


def test_no_two_modules_have_one_name() -> None:
    stems = [path.stem for path in FILES if path.stem not in ("__init__", "__main__")]
    assert sorted(stems) == sorted(set(stems))


def test_no_module_hides_a_library() -> None:
    assert not {path.stem for path in FILES} & {"datasets", "tokenizers", "torch", "statistics", "json"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_no_file_is_too_long_to_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
