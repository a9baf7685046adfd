"""``python -m meanfield`` is the command line."""

import sys

from meanfield.cli import main

sys.exit(main())
