"""The fingerprint of source code moves with what the code does, and with nothing else."""

from pathlib import Path

import pytest

from baselines.random_k import RandomK
from baselines.static_pruning import StaticPruning
from budgetformer.method import Method
from suites.definitions.sources import ROOT, fingerprint, source_of

FILES = {
    "suites/start.py": "from baselines.rival import Rival\n\ndef run() -> None:\n    import suites.late\n",
    "suites/late.py": "X = 1\n",
    "suites/apart.py": "X = 2\n",
    "baselines/rival.py": "import budgetformer.kernel\n\nclass Rival:\n    name = 'rival'\n",
    "budgetformer/kernel.py": "SOURCE = 'kernel.cpp'\n",
    "budgetformer/kernel.cpp": "int one() { return 1; }  // one\n",
}
START = ("suites.start",)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def edited(checkout: Path, name: str, text: str) -> bool:
    """Whether the fingerprint moves with a file."""
    fingerprint.cache_clear()
    before = fingerprint(START, checkout)
    (checkout / name).write_text(text)
    fingerprint.cache_clear()
    return fingerprint(START, checkout) != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("suites/start.py", FILES["suites/start.py"] + "Y = 0\n"),
        ("suites/late.py", "X = 3\n"),
        ("baselines/rival.py", FILES["baselines/rival.py"].replace("'rival'", "'other'")),
        ("budgetformer/kernel.cpp", "int one() { return 2; }  // one\n"),
    ],
)
def test_code_that_is_reached_counts(checkout: Path, name: str, text: str) -> None:
    assert edited(checkout, name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("suites/apart.py", "X = 4\n"),
        ("suites/late.py", '"""Now it says what it is."""\n\n\nX = 1  # one\n"""And what X is."""\n'),
        (
            "baselines/rival.py",
            FILES["baselines/rival.py"].replace("class Rival:\n", 'class Rival:\n    """A rival."""\n\n'),
        ),
        ("budgetformer/kernel.cpp", "/* two\n   lines */\nint one() {\n  return 1;\n}\n"),
    ],
)
def test_words_layout_and_what_is_not_reached_do_not(checkout: Path, name: str, text: str) -> None:
    assert not edited(checkout, name, text)


def test_a_file_of_another_name_counts(checkout: Path) -> None:
    fingerprint.cache_clear()
    before = fingerprint(START, checkout)
    (checkout / "baselines/rival.py").rename(checkout / "baselines/other.py")
    (checkout / "suites/start.py").write_text(FILES["suites/start.py"].replace("rival", "other"))
    fingerprint.cache_clear()
    assert fingerprint(START, checkout) != before


def of(method: Method) -> set[str]:
    """The files behind a method's trials."""
    from suites.definitions.sources import _reached  # noqa: PLC0415 - what the hash is made of

    files = _reached(("suites.sweep.stages", type(method).__module__), ROOT)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_what_stands_behind_a_trial() -> None:
    files = of(RandomK())
    assert {
        "baselines/random_k.py",
        "baselines/full_mha.py",  # it is timed beside every method
        "budgetformer/attention.py",
        "budgetformer/kernel.py",
        "suites/training/loop.py",
        "suites/measuring/timing.py",
        "suites/data/splits.py",
    } <= files
    assert not {path for path in files if path.startswith(("reports/", "suites/commands/", "suites/executions/"))}
    # Which suites and tasks there are, and what a metric is called, changes no trial.
    assert not files & {f"suites/{name}.py" for name in ("definitions/catalog", "data/tasks", "records/metrics")}
    assert of(StaticPruning()) - files == {"baselines/static_pruning.py", "budgetformer/schedules.py"}


def test_only_a_method_from_outside_has_a_source_of_its_own() -> None:
    assert source_of(RandomK()) is None
