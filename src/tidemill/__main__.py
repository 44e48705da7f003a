"""The ``tidemill`` command, also as ``python -m tidemill``.

The imports of the command take a third of a second and more. Ctrl-C within them ends the process as
it ends any program, without Python's stack trace. Must not know: a command.
"""

import signal


def main() -> None:
    """Entry point of the ``tidemill`` script."""
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
