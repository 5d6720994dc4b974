"""The protocol socket of this worker: a device instead of a descriptor of the system.

There are no threads, so a flag takes the place of the native worker's lock. An interrupt can be raised
after a lock was taken and before the `with` block begins; the lock would stay taken, and nothing would
be sent any more. The flag is set and cleared inside one `try`, where no such gap exists.
"""

from ..wire import Wire


class DeviceWire(Wire):
    def __init__(self):
        super().__init__()
        self._sending = False

    def attach_device(self, device):
        self.fd = device.fd
        self._send_now = device.write
        self._receive_now = device.read
        self._receive_ready = device.read_ready
        self.open = True

    def is_sending(self):
        """Whether this code was called back from inside `send`."""
        return self._sending

    def _flush(self):
        # A signal handler that sends meanwhile leaves it to this call.
        if self._sending:
            return
        try:
            self._sending = True
            self._send_outgoing()
        finally:
            self._sending = False

    def wait(self):
        """Block until bytes arrive."""
        # Nothing waits for bytes from inside `send`.
        self._sending = False
        super().wait()

    def poll(self):
        """Receive the available bytes without blocking."""
        try:
            while True:
                self._received.extend(map(self._receive_ready, self._sizes))
                if len(self._received[-1]) < self._sizes[0]:
                    return
        except BlockingIOError:
            pass
