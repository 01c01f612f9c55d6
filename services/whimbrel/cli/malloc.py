"""Settings of glibc's malloc for the servers that we start: large blocks are kept, within bounds.

By default, glibc maps every block from 128 KiB on, at first, and unmaps it when it is freed: each large
request costs the kernel hundreds of fresh pages, which it zeroes. Kept blocks save that. But they stay
resident, so the bounds are those of a broker whose clients send 4 MiB at most:

    MALLOC_MMAP_THRESHOLD_   32 MiB   smaller blocks come from the heap, larger ones are unmapped when freed
    MALLOC_TRIM_THRESHOLD_   64 MiB   free memory at the heap's end beyond this is given back

docs/benchmarks.md has the figures: larger thresholds save no more, and keep the memory of a peak for good.
The image sets the same (Dockerfile); other C libraries ignore the variables.
"""

from collections.abc import Mapping

__all__ = ["SETTINGS", "with_settings"]

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}

OWN = "MALLOC_"  # glibc's variables for malloc, or
TUNABLES = "GLIBC_TUNABLES", "glibc.malloc."  # their newer form


def with_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the settings; unchanged if it has any setting of malloc's."""
    name, prefix = TUNABLES
    chosen = any(each.startswith(OWN) for each in environment) or prefix in environment.get(name, "")
    return dict(environment) if chosen else {**environment, **SETTINGS}
