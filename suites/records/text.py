"""Text from elsewhere, made fit for one line of a terminal or a table."""

LONGEST = 240
"""Characters of a line; what is longer ends in an ellipsis."""


def in_one_line(text: str, longest: int = LONGEST) -> str:
    """The text without line breaks, with control characters as escapes, and cut to a length.

    Args:
        text: anything, as from an error of somebody else's code.
        longest: the most characters that are left.
    """
    line = " ".join(text.split())
    line = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
