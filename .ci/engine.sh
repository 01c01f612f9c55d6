# Sourced by .ci/run: a Docker engine for the tests of containers.
#
#   engine_start    uses the engine that runs; else installs one where there is none (Debian, as root) and starts it
#   engine_stop     ends the engine that engine_start has started, and only that
#
# A second daemon beside a running one would fight over its network: one that answers is always used.

engine_pid=
engine_log=${TMPDIR:-/tmp}/whimbrel-ci-dockerd.log
ENGINE_START_S=30 # it answers within a second; a busy machine takes longer

engine_answers() {
    docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

engine_start() {
    engine_answers && return
    local missing=() tool
    for tool in dockerd:docker.io docker-compose:docker-compose iptables:iptables debootstrap:debootstrap; do
        command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "no Docker engine answers, and ${missing[*]} can only be installed by root on Debian" >&2
            return 1
        fi
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
            "${missing[@]}" ca-certificates >/dev/null
    fi
    # Where the package may start its daemon, it has.
    engine_answers && return
    setsid nohup dockerd >"$engine_log" 2>&1 </dev/null &
    engine_pid=$!
    local tries
    for ((tries = 0; tries < ENGINE_START_S * 5; tries++)); do
        engine_answers && return
        kill -0 "$engine_pid" 2>/dev/null || break
        sleep 0.2
    done
    echo "the Docker engine does not start:" >&2
    tail -n 20 "$engine_log" >&2
    return 1
}

engine_stop() {
    [ -n "$engine_pid" ] || return 0
    kill "$engine_pid" 2>/dev/null && wait "$engine_pid" 2>/dev/null
    engine_pid=
}
