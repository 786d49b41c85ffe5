"""``python -m redrive.faces.cli``: how a supervisor starts its workers, whatever the command was called by."""

from .main import main

main()
