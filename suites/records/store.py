"""A results folder: one JSON record per trial, with its arrays and weights beside it. The folder is the index."""

import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, NamedTuple

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


class Entry(NamedTuple):
    """What is stored of one trial: its record, per-example arrays, and trained weights (see :meth:`Store.save`)."""

    record: Record
    arrays: Arrays | None = None
    weights: bytes = b""


class Store:
    """Reads and writes a results folder.

    A record names the files beside it by a hash of what they hold. Those of a new record are complete before it takes
    the place of the old one, and the old one's go after that: a save that fails leaves the old ones as they were.

    Args:
        folder: where the records are; made if need be.
        create: make it, and see that it can be written.

    Raises:
        OSError: if the folder cannot be made or written.
    """

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self.trials = folder / "trials"
        if create:
            self.make()

    def make(self) -> None:
        """Makes the folder unless it is there, and sees that it can be written: before any work, not after it.

        Raises:
            OSError: if not.
        """
        self.trials.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.trials):
            pass

    def save(self, record: Record, arrays: Arrays | None = None, weights: bytes = b"") -> Record:
        """Writes a record with what belongs beside it.

        Args:
            record: what was found.
            arrays: per-example arrays; None leaves those that the record names already.
            weights: trained weights, as they are to be read back; empty leaves those that the record names already.

        Returns:
            The record as it was written: it names its files.
        """
        beside = {"arrays": b"" if arrays is None else _archive(arrays), "weights": weights}
        for name, content in beside.items():
            if content:
                named: dict[str, Any] = {name: hashlib.sha256(content).hexdigest()}
                record = replace(record, learned=replace(record.learned, **named))
                write(self._beside(record, name), content)
        old = self.find(record.id)
        write(self.path(record.id), record.to_json().encode())
        if old is not None:
            for path in {self._beside(old, name) for name in beside} - {self._beside(record, name) for name in beside}:
                path.unlink(missing_ok=True)
        return record

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

    def find(self, trial_id: str) -> Record | None:
        """One record; None if there is none, or the file is none."""
        try:
            return Record.from_json(self.path(trial_id).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @contextmanager
    def claim(self, trial_id: str) -> Iterator[bool]:
        """Whether nobody else has claimed a trial of this folder; who gets True has it until the block ends.

        The system lets go of a claim when its process ends, however it does. Windows has no such locks: there everybody
        gets True.
        """
        path = self.trials / f".{trial_id}.lock"
        while True:
            with path.open("w") as file:
                if not _lock(file):
                    yield False
                    return
                if not _is_open_at(file, path):
                    continue  # who had it before has just taken the file away
                try:
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return

    def path(self, trial_id: str) -> Path:
        """The file of a record."""
        return self.trials / f"{trial_id}.json"

    def arrays(self, record: Record) -> dict[str, NDArray[Any]]:
        """The per-example arrays of a record; empty if it has none.

        Raises:
            ValueError: if the file is missing, or not the one that the record was written with.
        """
        content = self._read(record, "arrays")
        if not content:
            return {}
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return dict(archive)

    def weights(self, record: Record) -> bytes:
        """The trained weights of a record; empty if none were kept.

        Raises:
            ValueError: if the file is missing, or not the one that the record was written with.
        """
        return self._read(record, "weights")

    def _beside(self, record: Record, name: str) -> Path:
        """The file with arrays or weights that a record names; before schema 4 arrays had no hash in their name."""
        digest = getattr(record.learned, name)
        suffix = {"arrays": "npz", "weights": "pt"}[name]
        return self.trials / (f"{record.id}.{digest[:16]}.{suffix}" if digest else f"{record.id}.{suffix}")

    def _read(self, record: Record, name: str) -> bytes:
        path, digest = self._beside(record, name), getattr(record.learned, name)
        if not digest and not path.exists():
            return b""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}; the record names it") from error
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{path} is not the file that the record was written with")
        return content


def _lock(file: IO[str]) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl  # noqa: PLC0415 - Windows has none

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_open_at(file: IO[str], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _archive(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    if arrays:
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> None:
    """Writes a file in one step, as readable as the umask says: a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say which file
        raise
