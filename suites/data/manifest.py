"""What a question needs of the data, without reading it: a small file that is written when the data is prepared."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import metadata

from budgetformer.kernel import cache_folder
from suites.data.tasks import find_task
from suites.definitions.sources import fingerprint
from suites.definitions.suite import TaskUse
from suites.records.store import write

_PACKAGES = ("datasets", "numpy", "scikit-learn")
"""What draws the splits, beside this project's own sources."""


@dataclass(frozen=True)
class Manifest:
    """A task's splits, described.

    Attributes:
        fingerprint: hash of all rows of all splits.
        rows: their number, by split.
    """

    fingerprint: str
    rows: dict[str, int]


@lru_cache(maxsize=64)
def manifest_of(name: str, train_limit: int | None = None, test_limit: int | None = None) -> Manifest:
    """The manifest of a task with its limits; the data is prepared, and read, if that has not been done here before.

    Raises:
        ValueError: as ``suites.data.splits.load_splits``, if the data has to be prepared.
    """
    task = find_task(name)
    versions = {package: metadata.version(package) for package in _PACKAGES}
    made_by = [task.sha256, train_limit, test_limit, fingerprint(("suites.data.splits",)), versions]
    file = cache_folder() / f"manifest-{name}-{sha256(json.dumps(made_by).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, TypeError):  # not yet, or not whole
        return Manifest(**json.loads(file.read_bytes()))
    # Imported here: it takes seconds, and is needed once.
    from suites.data.splits import load_splits  # noqa: PLC0415

    splits = load_splits(name, train_limit, test_limit)
    manifest = Manifest(splits.fingerprint, splits.rows)
    with suppress(OSError):  # a folder that cannot be written costs time, and nothing else
        write(file, json.dumps(asdict(manifest)).encode())
    return manifest


def check_manifest(use: TaskUse) -> None:
    """Holds a task's manifest against its texts, which are read for that.

    Raises:
        ValueError: if it says something else, as one that was edited; or as ``load_splits``.
    """
    from suites.data.splits import load_splits  # noqa: PLC0415 - as above

    splits = load_splits(use.name, use.train_limit, use.test_limit)
    if manifest_of(use.name, use.train_limit, use.test_limit) != Manifest(splits.fingerprint, splits.rows):
        raise ValueError(f"what is kept of the texts of {use.name} is not true of them; empty {cache_folder()}")
