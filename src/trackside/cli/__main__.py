"""`python -m trackside.cli`: the `trackside` command, for when its script is not on the path."""

from trackside.cli import main

main()
