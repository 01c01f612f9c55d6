# One image for all services. Kept to what every builder knows: no BuildKit syntax (docs/containers.md).
FROM python:3.11.13-slim-bookworm AS build

# Only to read the lock file: what it says is what pip installs, checked by its hashes.
RUN pip install --quiet --root-user-action=ignore --no-cache-dir --disable-pip-version-check uv==0.13.9
WORKDIR /build
COPY pyproject.toml uv.lock ./
RUN uv export --quiet --frozen --no-dev --no-emit-project --output-file requirements.txt \
 && python -m venv --without-pip /opt/whimbrel \
 && pip --python /opt/whimbrel/bin/python install --quiet --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --requirement requirements.txt
# The package itself needs no build: it goes beside its dependencies, compiled, for nothing is written later.
COPY services/whimbrel /build/whimbrel
RUN mv whimbrel "$(/opt/whimbrel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && printf '%s\n' '#!/opt/whimbrel/bin/python' 'from whimbrel.cli.main import run' 'run()' \
        > /opt/whimbrel/bin/whimbrel \
 && chmod 755 /opt/whimbrel/bin/whimbrel
# The compiled lane, where `make wheel` has left one; one of another version fails here (docs/lane.md).
COPY LICENSE dist/whimbrel_fast-*.whl /build/lane/
RUN set -- lane/whimbrel_fast-*.whl \
 && if [ -e "$1" ]; then \
        pip --python /opt/whimbrel/bin/python install --quiet --no-cache-dir --disable-pip-version-check \
            --no-index --no-deps "$@" \
     && /opt/whimbrel/bin/python -c 'from whimbrel.lane import Lane; Lane("required")'; \
    fi \
 && /opt/whimbrel/bin/python -m compileall -q /opt/whimbrel/lib


FROM python:3.11.13-slim-bookworm

# A new volume takes the owner of the folder that it covers.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin whimbrel \
 && mkdir -m 700 /store && chown whimbrel: /store
COPY --from=build /opt/whimbrel /opt/whimbrel
COPY deploy/healthcheck.py LICENSE NOTICE /opt/whimbrel/
ENV PATH=/opt/whimbrel/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Why: whimbrel/cli/malloc.py.
ENV MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=67108864
USER whimbrel
CMD ["whimbrel", "--help"]
