"""``python -m expost`` is the ``expost`` command."""

from expost.cli.main import main

main()
