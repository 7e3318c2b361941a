"""``python -m fieldfill`` is the command line."""

from fieldfill.cli import main

main()
