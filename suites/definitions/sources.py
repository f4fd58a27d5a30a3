"""Which source code stands behind a number, as a hash that moves when that code could give another one."""

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from budgetformer.method import Method

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

_PACKAGES = ("budgetformer", "baselines", "suites")

_MOVE_NOTHING = frozenset(
    {
        "suites.data.manifest",
        "suites.data.tasks",  # what it reads is pinned by a hash, and named in the question
        "suites.definitions.sources",
        "suites.measuring.sharing",
        "suites.records.metrics",
        "suites.records.record",  # what it says of comparability, the protocol, is in the question
        "suites.records.store",
        "suites.records.text",
    }
)
"""Modules that name, guard or keep numbers, and make none."""


@lru_cache(maxsize=64)
def fingerprint(modules: tuple[str, ...], root: Path = ROOT) -> str:
    """SHA-256 of what some modules of this project do, and of all that they import of it.

    It is taken of syntax trees without docstrings, so that comments, docstrings and layout do not count; of a C++
    source, which belongs to the modules of its folder, without comments.

    Args:
        modules: their dotted names; one from outside this project counts nothing here (:func:`source_of`).
        root: the checkout.
    """
    files = _reached(modules, root)
    files |= {source for file in files for source in file.parent.glob("*.cpp")}
    digest = hashlib.sha256()
    for path in sorted(files):
        text = path.read_text(encoding="utf-8")
        meaning = _tree(text) if path.suffix == ".py" else _without_comments(text)
        digest.update(f"{path.relative_to(root).as_posix()} {len(meaning)}\n{meaning}".encode())
    return digest.hexdigest()


def source_of(method: Method) -> str | None:
    """A hash of the file that defines a method from outside this project; None for one of this project's."""
    if type(method).__module__.partition(".")[0] in ("budgetformer", "baselines"):
        return None
    return hashlib.sha256(Path(inspect.getfile(type(method))).read_bytes()).hexdigest()[:16]


def _reached(modules: Iterable[str], root: Path) -> set[Path]:
    """The files of some modules and of all that they import, be it in a function or for types alone."""
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        path = _file(waiting.pop(), root)
        if path is None or path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file(module: str, root: Path) -> Path | None:
    """The file of a module of this project; None for anything else, packages included: they only say what they are."""
    if module.partition(".")[0] not in _PACKAGES or module in _MOVE_NOTHING:
        return None
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    return path if path.is_file() else None


class _Bare(ast.NodeTransformer):
    """Takes away expressions that are mere text: the docstrings of modules, classes, functions and attributes."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _tree(text: str) -> str:
    return ast.dump(_Bare().visit(ast.parse(text)))


def _without_comments(text: str) -> str:
    """C++ without comments and the layout around them. A string that looks like a comment would go with them."""
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())
