"""What tests share, by family. Test files import from here, and nothing here imports a test file.

    waiting         every way to wait: for a condition, for other processes, for a time
    provenance      seed and commit of a result
    pages           README.md and docs/: the commands on them, and those that tests run
    pieces          streams cut as reads give them
    rule_records    which rules were found with which sources, for programs that break rules one by one
    cluster/        our own processes: starting (as forks) and ending them, groups that elect
    history/        clients that note what they sent and saw, and the checker of what they noted
    store/          stores and records in memory and on disks that fail; RocketMQ's recorded stores
    broker/         parts of a broker without the rest: consumption, transactions, letters, SQL cases
    replication/    a master and its slaves or members without brokers, and their conversations as text
    http2/          peers of the gRPC port, listed there: raw bytes, raw calls, scripts, echo servers
    remoting/       peers and handlers of the remoting protocol
    lane/           the compiled lane beside Python, on the same input
    systems/        programs of others (RocketMQ, its SDKs, etcd), and stand-ins for them

What a folder of tests alone needs stands in that folder. Programs that are no tests are in `tools/`.
"""
