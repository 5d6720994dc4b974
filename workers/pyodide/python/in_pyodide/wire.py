"""The protocol socket of this worker: a device instead of a descriptor of the system."""

from ..wire import Wire


class DeviceWire(Wire):
    def attach_device(self, device):
        self.fd = device.fd
        self._send_now = device.write
        self._receive_now = device.read
        self._receive_ready = device.read_ready
        self.open = True

    def poll(self):
        """Receive the available bytes without blocking."""
        try:
            while True:
                self._received.extend(map(self._receive_ready, self._sizes))
                if len(self._received[-1]) < self._sizes[0]:
                    return
        except BlockingIOError:
            pass
