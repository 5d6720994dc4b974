// The character devices through which the Python part of the worker uses the protocol.
//
// `/dev/windlass` is the protocol socket: a write sends whole frames, a read takes received bytes. A write of two
// doubles (little-endian) to `/dev/windlass-wait` blocks. The first is the time in milliseconds: positive for a sleep,
// negative for a wait that also ends when bytes have arrived. The second is the number of the wait. An interrupt ends every wait with EINTR, so Python runs
// its signal handlers as on any system. A read of
// `/dev/windlass-failure` takes the text of the last failed file operation. No JavaScript object is visible to Python.

import { Interrupted } from './host.mjs';

const MAJOR = 87;
const MODE = 0o600;
const O_NONBLOCK = 2048;
const WAIT_BYTES = 16;

const PROTOCOL_PATH = '/dev/windlass';
const WAIT_PATH = '/dev/windlass-wait';

const FAILURE_PATH = '/dev/windlass-failure';

/** `failure` has the method `take`: the text of the last failed file operation, or an empty text. */
export function installDevices({ FS, ERRNO_CODES }, host, failure) {
  const failed = (name) => new FS.ErrnoError(ERRNO_CODES[name]);
  const interruptible = (wait) => {
    try {
      return wait();
    } catch (error) {
      throw error instanceof Interrupted ? failed('EINTR') : error;
    }
  };
  const open = (stream) => {
    stream.seekable = false;
  };
  const bytesOf = (heap, offset, length) => new Uint8Array(heap.buffer, heap.byteOffset + offset, length);

  const protocol = {
    open,
    read(stream, heap, offset, length) {
      const target = bytesOf(heap, offset, length);
      if (!(stream.flags & O_NONBLOCK)) interruptible(() => host.waitForBytes());
      const count = host.take(target);
      if (count === 0) throw failed('EAGAIN');
      return count;
    },
    write(_stream, heap, offset, length) {
      host.sendBytes(bytesOf(heap, offset, length));
      return length;
    },
  };

  // The last wait. Python repeats a write that an interrupt has ended if its handlers raise nothing; the deadline stays.
  let last = { number: 0, deadline: 0 };
  const wait = {
    open,
    write(_stream, heap, offset, length) {
      if (length !== WAIT_BYTES) throw failed('EINVAL');
      const numbers = new DataView(bytesOf(heap, offset, length).slice().buffer);
      const [ms, number] = [numbers.getFloat64(0, true), numbers.getFloat64(8, true)];
      if (Number.isNaN(ms)) throw failed('EINVAL');
      if (last.number !== number) last = { number, deadline: performance.now() + Math.abs(ms) };
      interruptible(() => (ms > 0 ? host.sleep(last.deadline) : host.waitForBytes(last.deadline)));
      return length;
    },
  };

  const failures = {
    open,
    read(_stream, heap, offset, length) {
      const text = Buffer.from(failure.take()).subarray(0, length);
      bytesOf(heap, offset, text.length).set(text);
      return text.length;
    },
  };

  const devices = [[PROTOCOL_PATH, protocol], [WAIT_PATH, wait], [FAILURE_PATH, failures]];
  for (const [minor, [path, operations]] of devices.entries()) {
    const device = FS.makedev(MAJOR, minor);
    FS.registerDevice(device, operations);
    FS.mkdev(path, MODE, device);
  }
}
