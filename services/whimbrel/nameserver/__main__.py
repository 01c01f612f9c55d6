"""`python -m whimbrel.nameserver`."""

from whimbrel.starting import run


def program() -> int:
    """Run a nameserver; return the exit code."""
    import os
    import sys

    from whimbrel.nameserver.program import main

    return main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    run(program)
