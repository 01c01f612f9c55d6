"""Put the compiled lane into an image, or the reason why it has none: the Dockerfile runs this.

    python image_lane.py LAID SERVICES SITE-PACKAGES

LAID has the module `whimbrel_lane` of the environment from which the image is built, where `deploy/stack.py`
has laid it out. It goes into the image if this Python can load it and it was built from the sources beside
SERVICES, those of the tree that the image is made of.
"""

import shutil
import sys
from pathlib import Path

NONE_LAID = "the image was built without it (`make up` builds it in)"


def main() -> None:
    """Look at what is laid out, copy it or write the reason, and say which."""
    laid, services, site = map(Path, sys.argv[1:])
    sys.path[:0] = [str(laid), str(services)]
    from whimbrel.lane import MODULE, Lane

    lane = Lane()
    files = sorted(laid.glob(f"{MODULE}.*"))
    if lane.active or (files and not lane.unusable):
        shutil.copy(files[0], site)
    else:
        why = f"the image was built without it: {lane.why}" if files else NONE_LAID
        (site / f"{MODULE}.py").write_text(f'"""No lane."""\n\nWHY = {why!r}\n', encoding="utf-8")
    print(lane.described(), flush=True)


if __name__ == "__main__":
    main()
