"""Runs the tests: `make test`, `.ci/run` and `make nightly` are plans of parts that run side by side.

    plan        which parts there are, what each needs, and which run at the same time; decides, runs nothing
    runner      runs the parts of a plan, and keeps what they print and how long they take
    needs       what this machine lacks, and which tests are skipped for it
    times       reads what tests took, and makes tables and docs/ci-times.md of it
    full_runs   when what `.ci/run` does by shares was last done in full

`python -m ci.run PLAN` is the command (`make test`, `make ci`, `make nightly`).
"""
