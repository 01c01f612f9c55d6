"""`python -m whimbrel.broker`."""

from whimbrel.starting import run


def program() -> int:
    """Run a broker; return the exit code."""
    import os
    import sys

    from whimbrel.broker.program import main

    return main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    run(program)
