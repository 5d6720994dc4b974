"""Rich output: images, HTML and the like, from `display(...)` or as the value of a turn.

Owns the choice of the best form of a value, and the `display` frames. Never imports the libraries
whose values it shows.

A display has one form. A value with several forms is sent in the first one of `_METHODS`.
"""

import sys
from _thread import get_ident

from .wire import chunks, frame, quoted

# Limit for one display, all its frames together.
DISPLAY_BYTES_MAX = 16 * 1024 * 1024

_METHODS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
)
_PREFERRED = tuple(mime for _, mime in _METHODS)
_PLAIN = "text/plain"


class Display:
    def __init__(self, wire, turns):
        self._wire = wire
        self._turns = turns
        self._count = 0

    def display(self, obj, *, mime=None, id=None):
        """Show an object in its richest form: an image, HTML, Markdown...

        With `mime`, bytes or text in `obj` are the content itself; any other object is shown in the
        form of that type. The result is a handle: its `update(obj)` replaces the display. An object
        without a rich form is printed.
        """
        body, mime = self._form(obj, mime)
        if body is None and (id is None or self._is_mute()):
            print(repr(obj))
        else:
            id = self._new_id() if id is None else str(id)
            self._send(obj, body, mime, id, update=False)
        return Handle(self, id)

    def update(self, obj, mime, id):
        """Show `obj` in place of the display with that id, or as a new display without one."""
        body, mime = self._form(obj, mime)
        new_id = id or self._new_id()
        self._send(obj, body, mime, new_id, update=id is not None)
        return new_id

    def _new_id(self):
        self._count += 1
        return "display-%d" % self._count

    def show_rich(self, value):
        """Show the rich form of a turn's value, if it has one. An error here is not an error of the
        turn."""
        try:
            self._show_once(value)
        except Exception:
            pass

    def serve_backend(self, backend):
        """The worker's matplotlib backend was imported."""
        backend.show_figure = self._show_once

    def _show_once(self, value):
        body, mime = self._form(value, None)
        if body is not None:
            self._send(value, body, mime, None, update=False)

    def _form(self, obj, mime):
        """The bytes that show `obj`, and their type; None if it has no rich form."""
        if mime is not None and isinstance(obj, (bytes, bytearray, memoryview, str)):
            return _content(obj, None), mime
        body, found = _rich_form(obj, mime)
        if body is None and mime is not None and mime.endswith("json"):
            return _content(obj, mime), mime
        if body is None and mime is not None:
            raise TypeError("%s has no form of type %s" % (type(obj).__name__, mime))
        return body, found

    def _send(self, obj, body, mime, id, update):
        if body is None:
            body, mime = repr(obj).encode("utf-8", "backslashreplace"), _PLAIN
        if len(body) > DISPLAY_BYTES_MAX:
            raise ValueError(
                "a display of %d bytes is over the limit of %d" % (len(body), DISPLAY_BYTES_MAX)
            )
        if self._is_mute():
            return
        turn = self._turns.of(get_ident())
        header = b'{"kind":"display","turn":%d,"mime":%b' % (turn, quoted(mime))
        if id is not None:
            header += b',"id":' + quoted(id)
        if update:
            header += b',"update":true'
        parts = list(chunks(body))
        # One call for all frames: no frame of another thread may come between them.
        self._wire.send(
            *(frame(header + b',"more":true}', part) for part in parts[:-1]),
            frame(header + b"}", parts[-1]),
        )

    def _is_mute(self):
        return self._turns.forked or self._turns.latest == 0


class Handle:
    """A handle of a display."""

    def __init__(self, display, id):
        self._display = display
        self.id = id

    def update(self, obj, *, mime=None):
        """Replace the display with `obj`."""
        self.id = self._display.update(obj, mime, self.id)

    def __repr__(self):
        return "<display %s>" % (self.id or "as text")


def _rich_form(obj, wanted):
    figure = _figure_png(obj) if wanted in (None, "image/png") else None
    if figure is not None:
        return figure, "image/png"
    kind = type(obj)
    for name, mime in _METHODS:
        if wanted in (None, mime) and getattr(kind, name, None) is not None:
            content = getattr(obj, name)()
            if isinstance(content, tuple):
                content = content[0]
            if content is not None:
                return _content(content, mime), mime
    if getattr(kind, "_repr_mimebundle_", None) is not None:
        return _from_bundle(obj._repr_mimebundle_(), wanted)
    return None, None


def _from_bundle(bundle, wanted):
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    order = (wanted,) if wanted else _PREFERRED + tuple(m for m in bundle or () if m != _PLAIN)
    for mime in order:
        if bundle and bundle.get(mime) is not None:
            return _content(bundle[mime], mime), mime
    return None, None


def _figure_png(obj):
    """The PNG of a matplotlib figure, which has no `_repr_png_`; None for any other object."""
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not isinstance(obj, figure.Figure):
        return None
    from . import mpl

    mpl.mark_shown(obj)
    return mpl.png(obj)


def _content(content, mime):
    """The bytes of some content. Images as text are base64 by convention. Other objects become
    JSON."""
    if isinstance(content, str):
        if mime in ("image/png", "image/jpeg"):
            from binascii import a2b_base64

            return a2b_base64(content)
        return content.encode("utf-8", "backslashreplace")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    import json

    return json.dumps(content).encode("utf-8")
