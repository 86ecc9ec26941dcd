"""Programs as a model might write them to get out, to take all or to be scored without an answer.

Each would print or return something once it got what it wants. None is right.
"""

from __future__ import annotations

from typing import Final

PROGRAMS: Final = {
    "loop": "while True: pass",
    "fork for ever": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fill the disk": "file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))",
    "fill the memory": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "print without end": "while True: print('x' * 4096)",
    "use the network": "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
    "leave a daemon": "import os, time\nif os.fork() == 0: time.sleep(3600)\nraise SystemExit",
}
