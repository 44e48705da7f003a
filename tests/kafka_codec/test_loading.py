"""The codec loads little: no reader or writer of kio, no hypothesis, and nothing before its use."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import tidemill.protocols.kafka.server
from tidemill.kafka_codec import messages
loaded = lambda: sorted(name for name in sys.modules if name.startswith("kio.schema.metadata"))
assert loaded() == [], loaded()
messages.decode_request(3, 12, bytes(8), 0)
assert "kio.schema.metadata.v12.request" in loaded(), loaded()
assert "kio.schema.metadata.v11" not in loaded(), loaded()
print([name for name in ("kio.serial", "kio._kio_native", "hypothesis") if name in sys.modules])
"""


def test_what_the_server_loads() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_hypothesis_can_be_imported_afterwards() -> None:
    program = "import tidemill.kafka_codec.messages, hypothesis; print(hypothesis.given)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("<function given")
