"""The methods by name: an explicit table, and what other packages and files add to it."""

import dataclasses
import importlib
import importlib.util
import inspect
import keyword
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from baselines.budgeted_gates import BudgetedGates
from baselines.full_mha import FullMHA
from baselines.l0_gates import L0Gates
from baselines.layer_drop import LayerDrop
from baselines.mixture_of_heads import MixtureOfHeads
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from baselines.random_subset import RandomSubset
from baselines.static_pruning import StaticPruning
from baselines.subset_pruning import SubsetPruning
from budgetformer.adaptive import BudgetFormer, BudgetFormerST
from budgetformer.method import Method
from suites.definitions.names import look_up
from suites.records.text import in_one_line

_OURS: tuple[type[Method], ...] = (
    BudgetFormer,
    BudgetFormerST,
    BudgetedGates,
    FullMHA,
    L0Gates,
    LayerDrop,
    MixtureOfHeads,
    NoAttention,
    RandomK,
    RandomSubset,
    StaticPruning,
    SubsetPruning,
)
"""The methods of this project. A new one is a line here; its file says its name and its place."""

METHODS = {method.name: method for method in sorted(_OURS, key=lambda method: method.place)}
"""The same by name, in the order of tables."""

ENTRY_POINT_GROUP = "budgetformer.methods"

_plugins: dict[str, type[Method]] = {}


def known_methods() -> dict[str, type[Method]]:
    """All methods: this project's, those of installed packages (``budgetformer.methods``), and those of plug-ins.

    Raises:
        ValueError: if an entry point cannot be loaded, is no method, or takes a name that is taken.
    """
    known = dict(METHODS)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            method = entry.load()
        except Exception as error:
            raise ValueError(
                f"the method {entry.name!r} ({entry.value}) cannot be loaded: {in_one_line(str(error))}"
            ) from error
        _add(known, method, entry.value)
    return known | _plugins


def load_plugin(file: Path) -> list[type[Method]]:
    """Imports a file and makes its methods known to this process.

    Returns:
        The subclasses of ``Method`` with a name of their own that the file defines.

    Raises:
        ValueError: if it cannot be imported by its name, here and in workers, or has no method that can be known.
    """
    module = _import(file)
    found = [
        value
        for value in dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
        if issubclass(value, Method) and value.__module__ == module.__name__ and "name" in vars(value)
    ]
    if not found:
        raise ValueError(f"--plugin {file} defines no subclass of budgetformer.Method with a name")
    known = known_methods()
    for method in found:
        _add(known, method, f"--plugin {file}: {method.__name__}")
    _plugins.update((method.name, method) for method in found)
    return found


def find_method(name: str) -> type[Method]:
    """The method of that name.

    Raises:
        ValueError: if there is none; names the known ones and the nearest.
    """
    return look_up(name, known_methods(), "method")


def _import(file: Path) -> ModuleType:
    """Imports a file by its stem: a worker that unpickles a method finds its class by that name and ``sys.path``."""
    path = file.resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"--plugin {file}: {'no Python file (.py)' if path.exists() else 'there is no such file'}")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise ValueError(f"--plugin {file}: {path.stem!r} is no name of a module; rename the file")
    sys.path.append(str(path.parent))  # last, so that nothing beside the file hides a module of the bench
    if _is_another(path):
        raise ValueError(f"--plugin {file}: there is another module {path.stem!r} already; rename the file")
    try:
        return importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        reason = in_one_line(f"{type(error).__name__}: {error}")
        raise ValueError(f"--plugin {file} cannot be imported: {reason}") from error


def _is_another(path: Path) -> bool:
    """Whether the name of a file's module is that of another one."""
    if path.stem in sys.modules:
        origin = getattr(sys.modules[path.stem], "__file__", None) or "built-in"
    else:
        spec = importlib.util.find_spec(path.stem)
        if spec is None or spec.origin is None:  # a mere folder of that name gives way
            return False
        origin = spec.origin
    return Path(origin).resolve() != path


def _add(known: dict[str, type[Method]], method: object, where: str) -> None:
    """Adds a method from outside to the known ones, if it is fit for that."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ValueError(f"{where} is no subclass of budgetformer.Method")
    if not re.fullmatch(r"[\w.-]+", str(getattr(method, "name", ""))):
        raise ValueError(f"{where} needs a name of letters, digits, '-', '.' and '_'")
    annotated = inspect.get_annotations(method)
    fields = [field for field, hint in annotated.items() if "ClassVar" not in str(hint)]
    if fields and "__dataclass_params__" not in vars(method):
        raise ValueError(f"{where} needs @dataclass(frozen=True, kw_only=True), for its fields {', '.join(fields)}")
    required = [field.name for field in dataclasses.fields(method) if _has_no_default(field)]
    if required:
        raise ValueError(f"{where} needs a default for {', '.join(required)}")
    if known.setdefault(method.name, method) is not method:
        raise ValueError(f"{where} has the name of another method: {method.name}")


def _has_no_default(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
