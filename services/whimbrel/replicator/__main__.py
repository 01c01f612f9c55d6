"""`python -m whimbrel.replicator`."""

from whimbrel.starting import run


def program() -> int:
    """Run a replicator; return the exit code."""
    import os
    import sys

    from whimbrel.replicator.program import main

    return main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    run(program)
