"""`python -m whimbrel.broker`."""

import os
import sys

from whimbrel.broker.program import main

sys.exit(main(sys.argv[1:], os.environ))
