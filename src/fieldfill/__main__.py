"""``python -m fieldfill`` is the command line."""

from fieldfill.cli.main import main

main()
