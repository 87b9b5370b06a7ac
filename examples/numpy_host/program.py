"""What the programs here share."""

import sys

import tria


def note(text, end="\n"):
    print(text, end=end, file=sys.stderr, flush=True)


def run(main):
    """What is wrong with the input is one line."""
    try:
        main()
    except (tria.TriaError, OSError, ValueError) as why:
        sys.exit(f"numpy_host: {why}")
