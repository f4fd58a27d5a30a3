"""A results folder: one JSON record per trial, with its per-example arrays beside it. The folder is the index."""

import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suites.records.record import Record

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Contents:
    """What a results folder holds.

    Attributes:
        records: by trial id.
        bad: what is wrong, by file.
    """

    records: dict[str, Record] = field(default_factory=dict)
    bad: dict[Path, str] = field(default_factory=dict)


class Store:
    """Reads and writes a results folder.

    Args:
        folder: where the records are; made if need be.

    Raises:
        OSError: if the folder cannot be made or written.
    """

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self.trials = folder / "trials"
        if create:
            self.trials.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.trials):
                pass  # a folder that cannot be written is found out before any work, not after

    def save(self, record: Record, arrays: Arrays | None = None) -> Path:
        """Writes a record, its arrays first, each in one step: a reader never sees half a file."""
        beside = self.trials / f"{record.id}.npz"
        if arrays:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, allow_pickle=False, **arrays)
            write(beside, buffer.getvalue())
        else:
            beside.unlink(missing_ok=True)  # an earlier record's
        path = self.trials / f"{record.id}.json"
        write(path, record.to_json().encode())
        return path

    def load(self) -> Contents:
        """All records; a file that is none is reported and passed over."""
        contents = Contents()
        for path in sorted(self.trials.glob("*.json")):
            try:
                record = Record.from_json(path.read_text(encoding="utf-8"))
                if record.id != path.stem:
                    raise ValueError(f"the file's name is not the record's id {record.id}")
            except (OSError, ValueError) as error:
                contents.bad[path] = str(error)
            else:
                contents.records[record.id] = record
        return contents

    def arrays(self, trial_id: str) -> dict[str, NDArray[Any]]:
        """The per-example arrays of a trial; empty if it has none."""
        path = self.trials / f"{trial_id}.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)


def write(path: Path, content: bytes) -> None:
    """Writes a file in one step: a reader never sees half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
