"""`python -m coplace` is the program."""

import sys

from coplace._program import main

sys.exit(main())
