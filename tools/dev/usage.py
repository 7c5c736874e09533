"""Command lines of the scripts here: --help prints what a script says of itself at its head, and nothing is done."""
import sys


def read(doc, flags=(), least=0, most=0):
    """The words of the command line: `flags`, and from `least` to `most` others; anything else is an error."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(doc.strip())
        sys.exit(0)
    others = [word for word in sys.argv[1:] if word.partition("=")[0] not in flags]
    if any(word.startswith("-") for word in others) or not least <= len(others) <= most:
        print(doc.strip(), file=sys.stderr)
        sys.exit(2)
    return sys.argv[1:]
