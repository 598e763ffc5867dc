"""`python -m kvstitch.service.cli`."""

import sys

from kvstitch.service.cli import main

sys.exit(main())
