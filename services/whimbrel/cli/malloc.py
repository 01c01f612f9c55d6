"""How glibc hands out memory in the processes that we start: large blocks are kept, within bounds.

By itself glibc maps every block from 128 KiB on, at first, and unmaps it when it is freed: a request of 1 MiB
costs the kernel hundreds of fresh pages, which it zeroes. Kept blocks save that. What is kept is resident
memory, though, so the bounds are those of a broker whose clients send 4 MiB at most:

    MALLOC_MMAP_THRESHOLD_   32 MiB   smaller blocks come from the heap, larger ones go back when freed
    MALLOC_TRIM_THRESHOLD_   64 MiB   free memory at the heap's end beyond this goes back

Measured at a broker (native transport, glibc 2.36, two busy cores), with requests of 1,024 messages of 1 KiB,
4 at once, and then of one message of 4 MB, 48 at once; `1 GiB` stands for thresholds of 1 and 2 GiB, with
64 MiB asked for at a time:

                          page faults a request     system time a request       resident memory
                           1 MiB       4 MB         1 MiB        4 MB           idle   1 MiB   4 MB
    glibc's own            1,220      2,960..5,360  4.2..8.9 ms  32..61 ms      45 MB  78 MB   84..92 MB
    these                  540..600   670..1,120    2.1 ms       18..26 ms      46 MB  80 MB   131..135 MB
    1 GiB                  580..610   545           2.3..3.8 ms  18..20 ms      47 MB  80 MB   245..249 MB

So the larger ones give no more, and hold a peak for good. Asking for more than is needed (MALLOC_TOP_PAD_)
changed nothing. The image sets the same (Dockerfile); other C libraries ignore them.
"""

from collections.abc import Mapping

__all__ = ["SETTINGS", "with_settings"]

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}

OWN = "MALLOC_"  # of glibc, as variables, or
TUNABLES = "GLIBC_TUNABLES", "glibc.malloc."  # by their newer name


def with_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process of ours; who has set anything of malloc's keeps all as it is."""
    name, prefix = TUNABLES
    chosen = any(each.startswith(OWN) for each in environment) or prefix in environment.get(name, "")
    return dict(environment) if chosen else {**environment, **SETTINGS}
