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


def imports(path: Path) -> set[str]:
    """Modules that a file names in an import, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    names = imports(path)
    used = {name.split(".")[0] for name in names}
    assert used & set(PACKAGES) <= MAY_USE[package] | {package}
    if package in ("budgetformer", "baselines"):
        assert used <= set(sys.stdlib_module_names) | {"torch", *PACKAGES}
    if package == "reports":
        from_suites = {".".join(name.split(".")[:2]) for name in names if name.startswith("suites")}
        assert from_suites <= TORCH_FREE
    if package == "reports" or ".".join(path.relative_to(ROOT).with_suffix("").parts) in TORCH_FREE:
        assert "torch" not in used


def test_no_module_hides_a_library() -> None:
    assert not {path.stem for path in FILES} & {"datasets", "tokenizers", "torch", "statistics", "json"}
