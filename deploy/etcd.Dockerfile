# A stand-in for etcd's own image, of the programs that deploy/etcd.py has found: where no registry is reached.
FROM python:3.11.13-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin etcd \
 && mkdir -m 700 /etcd-data && chown etcd: /etcd-data
COPY etcd etcdctl /usr/local/bin/
USER etcd
CMD ["etcd"]
