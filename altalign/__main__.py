"""The process of `altalign`. Ctrl-C ends it with one line, even while modules are imported."""

import sys


def main() -> int:
    """Run this process's command line; returns the exit code."""
    try:
        from altalign import cli

        return cli.main()
    except KeyboardInterrupt:
        if sys.stderr:
            sys.stderr.write("altalign: interrupted; run the same command again, it continues\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
