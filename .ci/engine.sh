# Sourced by .ci/run: what tests need of the machine beside Python.
#
#   engine_start    uses the Docker engine that runs; else installs one where there is none and starts it
#   engine_stop     ends the engine that engine_start has started, and only that
#   install_missing PROGRAM:PACKAGE...    installs what is missing (Debian, as root), without starting its services;
#                                         the path of a file stands for a package without a program
#
# A second daemon beside a running one would fight over its network: one that answers is always used.

engine_pid=
engine_log=${TMPDIR:-/tmp}/whimbrel-ci-dockerd.log
ENGINE_START_S=30 # it answers within a second; a busy machine takes longer

engine_answers() {
    docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

install_missing() {
    local missing=() tool
    for tool; do
        command -v "${tool%%:*}" >/dev/null || [ -e "${tool%%:*}" ] || missing+=("${tool##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "${missing[*]}: missing, and can only be installed by root on Debian" >&2
        return 1
    fi
    apt-get update -qq
    # Services ask for the run level, and stay down in this one.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
        "${missing[@]}" ca-certificates >/dev/null
}

engine_start() {
    engine_answers && return
    install_missing dockerd:docker.io docker-compose:docker-compose iptables:iptables debootstrap:debootstrap || return
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
