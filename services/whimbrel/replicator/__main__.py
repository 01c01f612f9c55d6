"""`python -m whimbrel.replicator`."""

import os
import sys

from whimbrel.replicator.program import main

sys.exit(main(sys.argv[1:], os.environ))
