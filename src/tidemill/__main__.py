"""The ``tidemill`` command, also as ``python -m tidemill``.

The imports of the command take a tenth of a second and more. Ctrl-C within them ends the process as
it ends any program, without Python's stack trace. Must not know: a command.
"""

import signal
import sys

_ONLY_FOR_CONSOLES = ("rich", "greenlet")
"""What structlog imports wherever it is installed, and tidemill does not use there: rich, with
pygments, for tracebacks on a terminal, and greenlet for a deprecated module. They take 5 MB of each
process."""


class _LeanStructlog:
    """Makes structlog load without these packages, as if they were not installed.

    Any other module, the user's too, imports them as usual. In programs of others, which import
    tidemill, structlog is as they know it.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse an import by structlog. Others find the module."""
        if name not in _ONLY_FOR_CONSOLES:
            return
        structlog = sys.modules.get("structlog")
        is_loading = structlog is not None and not hasattr(structlog, "get_logger")
        if is_loading:
            raise ModuleNotFoundError(f"structlog is loaded without {name}", name=name)


def main() -> None:
    """Entry point of the ``tidemill`` script."""
    sys.meta_path.insert(0, _LeanStructlog())
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler  # and not ignored, as in nohup
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidemill.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
