"""``python -m suites list``."""

import argparse

from suites.commands.arguments import DONE, Command, add_plugins

# ruff: noqa: PLC0415 - see suites.commands.arguments


def run(options: argparse.Namespace) -> int:
    """Prints the suites, tasks and methods."""
    from suites.data.tasks import TASKS
    from suites.definitions.catalog import SUITES
    from suites.definitions.registry import known_methods, load_plugin

    for file in options.plugin:
        load_plugin(file)
    print("suites:")
    for suite in (make() for make in SUITES.values()):
        print(f"  {suite.name:16} {suite.summary}")
    print("tasks:")
    for task in TASKS.values():
        print(f"  {task.name:16} {len(task.labels)} classes; {task.licence}")
    print("methods:")
    for name, method in known_methods().items():
        summary, *_ = (method.__doc__ or "").strip().split("\n")
        print(f"  {name:16} {summary}")
    return DONE


COMMAND = Command("list", "Lists the suites, tasks and methods.", add_plugins, run)
