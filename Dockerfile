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
# The package itself needs no build: it goes beside its dependencies, compiled, for nothing is written later. The
# compiled lane comes with it where `make up` has laid one out that is of these sources; else the reason (docs/lane.md).
COPY services/whimbrel services/whimbrel
COPY native/core/src native/core/src
COPY native/binding/src native/binding/src
COPY LICENSE deploy/image_lane.py build/image/whimbrel_lane.* lane/
RUN site="$(/opt/whimbrel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && PYTHONDONTWRITEBYTECODE=1 /opt/whimbrel/bin/python lane/image_lane.py lane services "$site" \
 && mv services/whimbrel "$site" \
 && printf '%s\n' '#!/opt/whimbrel/bin/python' 'from whimbrel.cli.main import run' 'run()' \
        > /opt/whimbrel/bin/whimbrel \
 && chmod 755 /opt/whimbrel/bin/whimbrel \
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
