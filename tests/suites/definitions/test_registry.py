"""Methods by name, and methods from outside this project."""

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from baselines.full_mha import FullMHA
from baselines.random_k import RandomK
from budgetformer.adaptive import BudgetFormer
from budgetformer.method import Method
from suites.__main__ import main
from suites.definitions import registry
from suites.definitions.registry import METHODS, find_method, known_methods, load_plugin
from suites.definitions.sources import source_of

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

from baselines.random_k import RandomK
from budgetformer import Method


@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    """One of mine."""

    name: ClassVar[str] = "mine"


class Base(Method):
    """Has no name, so it is nobody's method."""


Alias = Mine
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for plug-ins; what they change of this process is undone."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(registry, "_plugins", {})
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, content: str = PLUGIN) -> Path:
    file = folder / name
    file.write_text(content)
    return file


def test_the_names_in_the_registry_are_those_of_the_classes() -> None:
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}


def test_labels_name_what_is_not_a_default() -> None:
    assert RandomK().label == "random-k"
    assert RandomK(s=0.5).label == "random-k(s=0.5)"
    assert BudgetFormer(gate="s*p", min_heads=1).label == "budgetformer(gate=s*p, min_heads=1)"


@dataclass(frozen=True, kw_only=True)
class Outside(Method):
    """Somebody else's."""

    name: ClassVar[str] = "outside"


class Taken(FullMHA):
    name: ClassVar[str] = "random-k"


@dataclass(frozen=True, kw_only=True)
class Demanding(Method):
    """Cannot be made without being told something."""

    name: ClassVar[str] = "demanding"
    k: int


def _install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    entry = EntryPoint(name="outside", value=f"{__name__}:{name}", group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [entry])


def test_an_installed_package_can_add_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "Outside")
    assert find_method("outside").name == "outside"
    assert set(known_methods()) == {*METHODS, "outside"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "cannot be loaded"),
        ("PLUGIN", "PLUGIN is no subclass"),
        ("Method", "Method needs a name of letters, digits"),
        ("Taken", "Taken has the name of another method: random-k"),
        ("Demanding", "Demanding needs a default for k"),
    ],
)
def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    _install(monkeypatch, name)
    with pytest.raises(ValueError, match=message):
        known_methods()


def test_a_plugin_adds_the_methods_that_it_defines(folder: Path) -> None:
    file = write(folder, "plugin_good.py")
    (method,) = load_plugin(file)
    assert method.name == "mine"
    assert method is find_method("mine") is known_methods()["mine"]
    assert sys.path[-1] == str(folder)
    assert load_plugin(file) == [method]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plugin_none.txt", PLUGIN, "no Python file (.py)"),
        ("my-method.py", PLUGIN, "'my-method' is no name of a module; rename the file"),
        ("class.py", PLUGIN, "'class' is no name of a module; rename the file"),
        ("json.py", PLUGIN, "there is another module 'json' already; rename the file"),
        ("wave.py", PLUGIN, "there is another module 'wave' already; rename the file"),  # not yet imported
        ("sys.py", PLUGIN, "there is another module 'sys' already; rename the file"),
        ("suites.py", PLUGIN, "there is another module 'suites' already; rename the file"),
        ("__main__.py", PLUGIN, "there is another module '__main__' already; rename the file"),
        ("plugin_syntax.py", "class Mine(:\n", "SyntaxError: "),
        ("plugin_binary.py", "a\0b", "cannot be imported: "),
        ("plugin_raises.py", "raise RuntimeError('first\\nsecond')", "cannot be imported: RuntimeError: first second"),
        ("plugin_exits.py", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
        ("plugin_empty.py", "", "defines no subclass of budgetformer.Method with a name"),
        ("plugin_imports.py", "from baselines.random_k import RandomK", "defines no subclass of budgetformer.Method"),
        ("plugin_taken.py", PLUGIN.replace('"mine"', '"random-k"'), "Mine has the name of another method: random-k"),
        ("plugin_twice.py", PLUGIN + "\nclass Other(Mine):\n    name = 'mine'\n", "Other has the name of another"),
        ("plugin_name.py", PLUGIN.replace('"mine"', '"my method"'), "Mine needs a name of letters, digits"),
        (
            "plugin_plain.py",
            PLUGIN.replace("@dataclass(frozen=True, kw_only=True)\n", "").replace(
                "\n\nclass Base", "    k: int = 1\n\nclass Base"
            ),
            "Mine needs @dataclass(frozen=True, kw_only=True), for its fields k",
        ),
        ("plugin_needs.py", PLUGIN.replace("\n\nclass Base", "    k: int\n\nclass Base"), "Mine needs a default for k"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_with_the_reason(
    folder: Path, name: str, content: str, message: str
) -> None:
    file = write(folder, name, content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_plugin(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert "mine" not in known_methods()


def test_two_plugins_of_one_stem_are_refused(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
    load_plugin(write(folder / "a", "plugin_same.py"))
    with pytest.raises(ValueError, match="another module 'plugin_same' already; rename"):
        load_plugin(write(folder / "b", "plugin_same.py", PLUGIN.replace("mine", "yours")))


def test_a_package_beside_the_plugin_does_not_take_its_place(folder: Path) -> None:
    (folder / "plugin_pack").mkdir()
    write(folder / "plugin_pack", "__init__.py", PLUGIN)
    with pytest.raises(ValueError, match="another module 'plugin_pack' already; rename"):
        load_plugin(write(folder, "plugin_pack.py"))


def test_the_source_of_a_method_is_a_hash_of_its_file_unless_it_is_ours(folder: Path) -> None:
    file = write(folder, "plugin_hashed.py")
    (method,) = load_plugin(file)
    assert source_of(method()) == hashlib.sha256(PLUGIN.encode()).hexdigest()[:16]
    assert source_of(Outside()) == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    assert {source_of(ours()) for ours in METHODS.values()} == {None}


def test_a_plugin_is_listed_and_planned_beside_the_suites_methods(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    write(folder, "plugin_shown.py", PLUGIN + "\n\nclass Silent(RandomK):\n    name = 'silent'\n")
    assert main(["list", "--plugin", "../plugin_shown.py"]) == 0
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["mine", "One of mine."] in shown
    assert ["silent"] in shown
    assert main(["plan", "smoke", "--task", "bbc-topics", *["--plugin", "../plugin_shown.py"] * 2]) == 0
    *own, mine, silent, _ = capsys.readouterr().out.splitlines()
    assert (mine, silent) == ("missing  bbc-topics, mine, seed 0", "missing  bbc-topics, silent, seed 0")
    assert "missing  bbc-topics, full-mha, seed 0" in own


@pytest.mark.parametrize("command", [["list"], ["plan", "smoke"], ["run", "smoke"], ["tune", "smoke"]])
def test_a_plugin_that_raises_is_one_line_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    file = write(folder, "plugin_divides.py", "1 / 0")
    assert main([*command, "--plugin", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    reason = "ZeroDivisionError: division by zero"
    assert shown.err == f"suites: error: --plugin {file} cannot be imported: {reason}\n"
    assert list((folder / "here").iterdir()) == []
