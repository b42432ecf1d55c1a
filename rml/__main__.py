"""``python -m rml`` is the command line."""

from rml.cli import main

if __name__ == "__main__":
    main()
