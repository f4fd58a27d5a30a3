"""``python -m suites data``."""

import argparse

from suites.commands.arguments import DONE, Command

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which task."""
    parser.add_argument("task", metavar="TASK", help="name of a task; see: python -m suites list")


def run(options: argparse.Namespace) -> int:
    """Describes a task."""
    import numpy as np

    from suites.data.splits import load_splits

    splits = load_splits(options.task)
    print(f"{splits.task.name}: {', '.join(f'{count} {name}' for name, count in splits.rows.items())} rows")
    print(f"licence: {splits.task.licence}\ntexts: {splits.task.package or 'generated'}")
    print(f"fingerprint: {splits.fingerprint}")
    for name, part in (("train", splits.train), ("validation", splits.validation), ("test", splits.test)):
        counts = np.bincount(part[:]["label"])
        words = np.array([len(text.split()) for text in part[:]["text"]])
        shares = ", ".join(f"{label} {count}" for label, count in zip(splits.task.labels, counts, strict=True))
        p5, p50, p95 = np.percentile(words, [5, 50, 95])
        print(f"{name}: {shares}; majority {counts.max() / counts.sum():.3f}; words {p5:.0f}/{p50:.0f}/{p95:.0f}")
    print("(words: 5th, 50th and 95th percentile)")
    for row in splits.train.select(range(3)):
        print(f"  [{splits.task.labels[row['label']]}] {row['text'][:100]}")
    return DONE


COMMAND = Command("data", "Describes a task: rows, classes, lengths, licence, examples.", add_arguments, run)
