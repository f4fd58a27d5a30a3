"""The subcommands of ``python -m suites``, a file each: arguments in, calls out."""
