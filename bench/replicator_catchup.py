"""How fast an empty slave catches up, replicator to replicator.

    PYTHONPATH=services:tests python bench/replicator_catchup.py [GiB]

The master's log is written first (random bytes, page cache warm), then the slave's replicator is started. The
clock runs from its first report until the last byte is acknowledged. Both logs are compared afterwards.

The limit beside it is what the same system calls reach with nothing around them: sendfile into a loopback
connection at one end, whole MiBs received and written into a new, allocated file at the other. It is measured
in the same round, first, after such a file was written and removed once: on a virtual machine the first touch
of memory can cost ten times as much as the next, because the host has to find it.
"""

import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.cluster.processes import Process
from support.store.master_log import MasterLog, log_files, same_log
from support.waiting import until

ROUNDS = 3
FILE_SIZE = 1 << 30
BLOCK = 1 << 20


def bare_gb_s(source: Path, target: Path) -> float:
    """Return GB/s of sending a file through a loopback connection into a new file, without any protocol."""
    size = source.stat().st_size
    rate = 0.0
    for _ in range(2):
        with socket.socket() as listener:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            child = os.fork()
            if not child:
                send_file(source, size, listener.getsockname())
                os._exit(0)
            receiving, _ = listener.accept()
        with receiving:
            fd = os.open(target, os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, size)
            buffer, position, began = bytearray(BLOCK), 0, time.perf_counter()
            while position < size:
                count = receiving.recv_into(buffer, 0, socket.MSG_WAITALL)
                position += os.pwrite(fd, memoryview(buffer)[:count], position)
            rate = size / 1e9 / (time.perf_counter() - began)
            os.close(fd)
        os.waitpid(child, 0)
        target.unlink()
    return rate


def send_file(source: Path, size: int, address: tuple[str, int]) -> None:
    """Be the sending end."""
    with source.open("rb") as file, socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        position = 0
        while position < size:
            position += os.sendfile(sock.fileno(), file.fileno(), position, BLOCK)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> dict[str, int]:
    """Return anonymous and file-backed resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        line[:7]: int(line.split()[1]) // 1024 for line in lines if line.startswith(("RssAnon", "RssFile"))
    }


def catch_up(master: MasterLog, root: Path, frame_bytes_max: int) -> float:
    """Return GB/s of one catch-up."""
    limit = bare_gb_s(next(iter(log_files(master.root).values())), root / "bare")
    feeder = Process(
        root, "replicator", "feeder", role="master", store=master.root, frame_bytes_max=frame_bytes_max
    )
    slave = Process(
        root, "replicator", "slave", role="slave", store=root / "slave", commitlog_file_size=FILE_SIZE
    )
    with feeder.start():
        slave.settings["master_ha"] = feeder.ha
        with slave.launch():
            until(lambda: master.page.acks[0] >= 0, what="the first report")
            began = time.perf_counter()
            until(
                lambda: master.page.acks[0] == master.end, timeout=600, what="the slave's log", every_s=0.002
            )
            seconds = time.perf_counter() - began
            gigabytes = master.end / 1e9
            print(
                f"frames of {frame_bytes_max >> 10} KiB: {gigabytes:.2f} GB in {seconds:.2f} s, "
                f"{gigabytes / seconds:.2f} GB/s "
                f"(bare system calls {limit:.2f}); CPU-s/GB feeder {cpu_s(feeder.pid) / gigabytes:.3f}, "
                f"follower {cpu_s(slave.pid) / gigabytes:.3f}; resident MiB {resident_mib(feeder.pid)}, "
                f"{resident_mib(slave.pid)}"
            )
            assert same_log(master.root, slave.store, master.end)
    shutil.rmtree(root / "slave")
    return gigabytes / seconds


def main() -> None:
    """Measure a few rounds."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 2) * (1 << 30))
    root = Path(tempfile.mkdtemp(prefix="whimbrel-catchup-"))
    try:
        with MasterLog(root / "master", file_size=FILE_SIZE) as master:
            block = os.urandom(BLOCK)
            while master.end < size:
                master.log.append_raw(master.end, block)
                master.log.publish()
            for frame_bytes_max in (1 << 20, 32 << 10):
                rates = [catch_up(master, root, frame_bytes_max) for _ in range(ROUNDS)]
                print(f"frames of {frame_bytes_max >> 10} KiB: median {statistics.median(rates):.2f} GB/s")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
