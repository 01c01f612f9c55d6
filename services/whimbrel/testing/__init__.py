"""A cluster in a test: real processes, ready in under a second, nothing left afterwards.

    from whimbrel.testing import Cluster

    with Cluster(slaves=1, replication="sync") as cluster:
        producer = Producer(cluster.endpoint)
        cluster.kill("master")

For pytest there are fixtures, which need no import (`plugin.py`): `whimbrel_cluster` and `whimbrel_topic`.

The processes, and who ends whom:

    the test's process ──starts──► host (`host.py`) ──starts──► nameserver, master, slaves, replicators
                       ◄─watches──                  ◄─watch──

The host is `whimbrel dev`'s supervisor without a view. It ends, and takes the directory along, when it is
told to, and when the test's process is gone, however that ended; the other processes are killed with the
host. Nothing runs in the test's process but `Cluster`, which forks nothing and keeps no thread.
"""

from whimbrel.testing.cluster import Cluster, ClusterError

__all__ = ["Cluster", "ClusterError"]
