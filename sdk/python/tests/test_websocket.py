"""The WebSocket's bytes, without a node: pieces, fragments, pings and ends."""

import os
import socket
import struct
import unittest

import node  # noqa: F401  The package's place.

from windlass._frames import CHUNK_BYTES_MAX, LENGTHS, message
from windlass._http import AnswerParser
from windlass._sse import Parser
from windlass._websocket import Closed, WebSocket


def sent(payload, opcode=0x82):
    """A frame as a node sends it."""
    length = len(payload)
    if length < 126:
        return bytes((opcode, length)) + payload
    if length < 65_536:
        return bytes((opcode, 126)) + struct.pack(">H", length) + payload
    return bytes((opcode, 127)) + struct.pack(">Q", length) + payload


class WebSockets(unittest.TestCase):
    def setUp(self):
        self.far, near = socket.socketpair()
        self.far.settimeout(10)
        self.near = near
        self.addCleanup(self.far.close)
        self.addCleanup(near.close)

    def socket(self, rest=b"", mask=False):
        return WebSocket(self.near, rest, mask=mask)

    def read(self, count):
        data = b""
        while len(data) < count:
            data += self.far.recv(count - len(data))
        return data

    def heard(self):
        """One frame as a node reads it: opcode and payload, unmasked."""
        head = self.read(2)
        length = head[1] & 0x7F
        if length == 126:
            (length,) = struct.unpack(">H", self.read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self.read(8))
        self.assertTrue(head[1] & 0x80, "a client's frames are masked")
        key = self.read(4)
        data = self.read(length)
        return head[0], bytes(byte ^ key[at % 4] for at, byte in enumerate(data))

    def test_messages_of_every_length_come_whole(self):
        web = self.socket()
        for length in (0, 1, 125, 126, 127, 65_535, 65_536, 200_000):
            payload = os.urandom(length)
            self.near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sending = node.in_thread(lambda payload=payload: self.far.sendall(sent(payload)))
            got = None
            while got is None:
                got = web.receive()
            self.assertEqual(bytes(got), payload)
            sending()

    def test_several_messages_in_one_piece_come_one_by_one(self):
        web = self.socket(rest=sent(b"first") + sent(b"second")[:3])
        self.far.sendall(sent(b"second")[3:] + sent(b"third"))
        self.assertEqual(bytes(web.receive()), b"first")
        self.assertTrue(web.has_more)
        self.assertEqual(bytes(web.receive()), b"second")
        self.assertEqual(bytes(web.receive()), b"third")
        self.assertFalse(web.has_more)
        self.assertIsNone(web.receive())

    def test_what_was_announced_and_not_read_is_told_to_the_next(self):
        web = self.socket(rest=sent(b"here"))
        self.far.sendall(sent(b"there"))
        web.unread = True
        self.assertEqual(bytes(web.receive()), b"here")
        self.assertTrue(web.has_more)
        self.assertEqual(bytes(web.receive()), b"there")
        self.assertFalse(web.has_more)

    def test_fragments_are_put_together_and_pings_between_them_answered(self):
        web = self.socket()
        self.far.sendall(sent(b"one ", 0x02) + sent(b"ping?", 0x89) + sent(b"two", 0x80))
        self.assertEqual(bytes(web.receive()), b"one two")
        self.assertEqual(self.heard(), (0x8A, b"ping?"))

    def test_a_ping_alone_is_answered_and_is_no_message(self):
        web = self.socket()
        self.far.sendall(sent(b"", 0x89))
        self.assertIsNone(web.receive())
        self.assertEqual(self.heard(), (0x8A, b""))

    def test_a_close_is_answered_and_ends_it(self):
        web = self.socket()
        self.far.sendall(sent(struct.pack(">H", 1002) + b"why", 0x88))
        with self.assertRaisesRegex(Closed, "why"):
            web.receive()
        self.assertEqual(self.heard(), (0x88, struct.pack(">H", 1002)))

    def test_an_end_without_a_word_is_an_end(self):
        web = self.socket()
        self.far.close()
        with self.assertRaises(Closed):
            web.receive()

    def test_what_is_too_long_or_masked_is_refused(self):
        for bad in (sent(b"", 0x82)[:1] + bytes((127,)) + struct.pack(">Q", 1 << 40), b"\x82\x81aaaaa", b"\x81\x00"):
            web = self.socket(rest=bad)
            with self.assertRaises(Closed):
                web.receive()

    def test_what_is_sent_arrives_with_and_without_a_key(self):
        for mask in (False, True):
            web = self.socket(mask=mask)
            for length in (0, 100, 20_000, 300_000):
                body = os.urandom(length)
                sending = node.in_thread(lambda body=body: web.send(b"head", memoryview(body)))
                self.assertEqual(self.heard(), (0x82, b"head" + body))
                sending()


class Formats(unittest.TestCase):
    def test_a_message_is_cut_into_frames_and_says_so(self):
        import io

        body = os.urandom(2 * CHUNK_BYTES_MAX + 5)
        for given in (body, io.BytesIO(body)):
            frames = list(message({"kind": "put", "path": "a"}, given))
            self.assertEqual(len(frames), 3)
            whole = b""
            for frame in frames:
                rest, length = LENGTHS.unpack_from(frame)
                self.assertEqual(rest + 4, len(frame))
                self.assertEqual(b'"more":true' in frame[8 : 8 + length], frame is not frames[-1])
                whole += frame[8 + length :]
            self.assertEqual(whole, body)
        for exact in (b"", bytes(CHUNK_BYTES_MAX)):
            self.assertEqual(len(list(message({"kind": "put"}, exact))), 1)

    def test_an_answer_is_read_however_it_is_cut(self):
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\nhello"
        chunked = (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
        )
        for whole in (plain, chunked):
            for size in (1, 2, 3, 7, len(whole)):
                parser, found = AnswerParser(), b""
                for at in range(0, len(whole), size):
                    parser.feed(whole[at : at + size])
                    found += parser.body()
                self.assertEqual((found, parser.done, parser.reusable), (b"hello", True, True))

    def test_an_answer_that_is_cut_off_is_an_error(self):
        parser = AnswerParser()
        parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
        self.assertEqual(parser.body(), b"hel")
        with self.assertRaises(EOFError):
            parser.feed(b"")

    def test_events_come_out_whole_however_they_are_cut(self):
        for text, expected in [
            (b'id: 1\ndata: {"a":1}\n\nid: 2\ndata: b\n\n', [b'{"a":1}', b"b"]),
            (b": keep alive\n\ndata: x\r\n\r\n", [b"x"]),
            (b"data: two\ndata:lines\n\n", [b"two\nlines"]),
            (b"data: unfinished\n", []),
        ]:
            for size in (1, 2, 3, 7, len(text)):
                parser, found = Parser(), []
                for at in range(0, len(text), size):
                    found += parser.feed(text[at : at + size])
                self.assertEqual(found, expected)


if __name__ == "__main__":
    unittest.main()
