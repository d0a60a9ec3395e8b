"""`python -m pagoda`."""

from pagoda.cli import main

main()
