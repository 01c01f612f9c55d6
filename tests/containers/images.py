"""Builds the images of the tests of containers, which then wait for no build: `python -m containers.images`.

The engine forgets the layers of an image with its last name, and each run of tests removes its own image. So
the newest one keeps a name, `LAYERS`, and the next build finds the layers of our dependencies.
"""

import contextlib

import docker.errors

from containers.rig import network_image, our_image, sdk_image
from stack import engine, ensure_etcd

__all__ = ["LAYERS", "main"]

LAYERS = "whimbrel-test-layers"


def main() -> None:
    """Build all."""
    client = engine()
    before = None
    with contextlib.suppress(docker.errors.ImageNotFound):
        before = client.images.get(LAYERS)
    tag = our_image(client)
    made = client.images.get(tag)
    made.tag(LAYERS)
    client.images.remove(tag)
    if before is not None and before.id != made.id:
        client.images.remove(before.id)
    for name in (LAYERS, sdk_image(client), network_image(client), ensure_etcd(client)):
        print(name)


if __name__ == "__main__":
    main()
