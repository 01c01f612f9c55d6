"""`python -m whimbrel.cli`: the command `whimbrel`, where no script of this name is on the PATH."""

from whimbrel.cli.main import run

if __name__ == "__main__":
    run()
