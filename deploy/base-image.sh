#!/usr/bin/env bash
# Makes a stand-in for the public base image of our Dockerfile. Only for machines that can't pull from a
# registry: everywhere else `docker compose build` gets the real one, and this script must not be used.
#
#   deploy/base-image.sh [SAVED.tar.gz]    as root; needs docker, debootstrap, and a Debian mirror for apt
#
# The image gets the public one's name, so that the Dockerfile builds unchanged, and a label that tells it
# apart. With a file name it is loaded from there when the file exists, else saved there: 60 MB that save a
# minute. The file holds this machine's certificates: keep it on this machine.
#
# What differs from the public image: Debian's Python 3.11 instead of one built from source, so packages are
# installed below /usr/local/lib/python3.11/dist-packages; and the certificates that this machine trusts.
set -euo pipefail

image=python:3.11.13-slim-bookworm
suite=bookworm
label=whimbrel.stand-in
saved=${1:-}

earlier=python:3.11-slim-bookworm # what stand-ins were called before the base had an exact version

there() { docker image inspect "$image" >/dev/null 2>&1; }

there && exit 0
if [ -n "$saved" ] && [ -s "$saved" ]; then
    docker load --quiet --input "$saved"
    there && exit 0
fi
if [ "$(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "$earlier" 2>/dev/null)" = debootstrap ]; then
    docker tag "$earlier" "$image"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
# The mirror that this machine uses already.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
echo "making a stand-in for $image from $mirror (about a minute)" >&2
if ! debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv \
    "$suite" "$root" "${mirror:-http://deb.debian.org/debian}" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    exit 1
fi

# As in the public image, `python` is Python and pip may install: Debian refuses that by default.
ln -s /usr/bin/python3 "$root/usr/local/bin/python"
rm -f "$root"/usr/lib/python3.11/EXTERNALLY-MANAGED
# Builds reach the package index, and where a proxy stands in between only with its certificate.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# debootstrap copies these of the machine it runs on.
: >"$root/etc/resolv.conf"
: >"$root/etc/hostname"
rm -rf "$root"/usr/share/{doc,info,locale,man}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"

tar --create --numeric-owner --directory "$root" . | docker import \
    --change 'CMD ["python3"]' \
    --change 'ENV LANG=C.UTF-8' \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin' \
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
    --change "LABEL $label=debootstrap" \
    - "$image" >/dev/null
if [ -n "$saved" ]; then
    mkdir -p "$(dirname "$saved")"
    docker save "$image" | gzip -1 >"$saved.part"
    mv "$saved.part" "$saved"
fi
