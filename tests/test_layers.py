"""Imports point one way: reports -> suites -> baselines -> budgetformer."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("budgetformer", "baselines", "suites", "reports")
MAY_USE: dict[str, set[str]] = {
    "budgetformer": set(),
    "baselines": {"budgetformer"},
    "suites": {"baselines", "budgetformer"},
    "reports": {"suites"},
}
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TORCH_FREE = {"suites.record", "suites.store", "suites.formulas"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Modules that a file names in an import, wherever it stands; relative ones in full."""
    found = set()
    folder = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    names = imports(path)
    used = {name.split(".")[0] for name in names}
    assert used & set(PACKAGES) <= MAY_USE[package] | {package}
    if package in ("budgetformer", "baselines"):
        assert used <= set(sys.stdlib_module_names) | {"torch", *PACKAGES}
    # What reports reads is free of torch all the way down: these modules use each other only.
    if package == "reports" or module_name(path) in TORCH_FREE | {"suites"}:
        assert "torch" not in used
        assert {".".join(name.split(".")[:2]) for name in names if name.split(".")[0] == "suites"} <= TORCH_FREE


def test_what_must_be_free_of_torch_exists() -> None:
    assert {module_name(path) for path in FILES} >= TORCH_FREE


def test_no_module_hides_a_library() -> None:
    assert not {path.stem for path in FILES} & {"datasets", "tokenizers", "torch", "statistics", "json"}
