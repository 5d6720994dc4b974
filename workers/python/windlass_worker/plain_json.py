"""JSON without the `json` package, which the code may not have imported, or may have changed.

Owns encoding and decoding, on the interpreter's C parts. Never produces invalid JSON (NaN, half of
a surrogate pair).
"""

from _json import encode_basestring, encode_basestring_ascii, make_encoder

from .wire import scan

_SPACE = " \t\r\n"


def _refuse(value):
    raise TypeError("a value of type %s is not JSON" % type(value).__name__)


def _path_text(value):
    """The text of a path object. Anything else is refused."""
    to_text = getattr(type(value), "__fspath__", None)
    text = to_text(value) if to_text is not None else None
    return text if isinstance(text, str) else _refuse(value)


def _encoder(quote, other):
    # Without a table of the values being written: a value that contains itself counts as nested too
    # deeply.
    return make_encoder(None, other, quote, None, ":", ",", False, False, False)


_encode = _encoder(encode_basestring, _refuse)
# Twice as fast, and the same result for ASCII text.
_encode_ascii = _encoder(encode_basestring_ascii, _refuse)
# For arguments of tools: a path, as of `pathlib`, is its text.
_encode_arguments = _encoder(encode_basestring, _path_text)
_encode_arguments_ascii = _encoder(encode_basestring_ascii, _path_text)


def encoded(value):
    """The bytes of a value, compact. Raises TypeError or ValueError."""
    return _bytes(value, _encode_ascii, _encode)


def encoded_arguments(value):
    """The same for arguments of a tool, which can contain path objects."""
    return _bytes(value, _encode_arguments_ascii, _encode_arguments)


def _bytes(value, encode_ascii, encode):
    try:
        text = "".join(encode_ascii(value, 0))
        if "\\u" in text:
            text = "".join(encode(value, 0))
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text with half of a surrogate pair is not JSON") from None
    except RecursionError:
        raise ValueError("the value is nested too deeply, or contains itself") from None


def decoded(body):
    """The value of some bytes. Raises ValueError."""
    text = str(body, "utf-8")
    if text[:1] in _SPACE:
        text = text.strip(_SPACE)
    try:
        value, end = scan(text, 0)
    except (StopIteration, SystemError):
        # SystemError: `json` is not imported, so its own error cannot be raised.
        raise ValueError("it is not JSON") from None
    if end != len(text) and text[end:].strip(_SPACE):
        raise ValueError("there is more than one JSON value")
    return value
