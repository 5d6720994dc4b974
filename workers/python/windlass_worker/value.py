"""The value of a turn's last expression as JSON, for clients that read it instead of its text.

Owns the limits of such a value. Encodes exact plain types only, so that no method of the session's
code runs. A value that is large, nested deeply, or of another type has no JSON.
"""

BYTES_MAX = 16 * 1024
DEPTH_MAX = 32
# JSON has at least two bytes for each item.
_ITEMS_MAX = BYTES_MAX // 2
# A larger number is not exact in most readers of JSON.
_INT_MIN, _INT_END = -(1 << 63), 1 << 64

_NONE = type(None)


def value_json(value):
    """The value as JSON, in bytes, or None."""
    kind = type(value)
    if kind is _NONE:
        return b"null"
    if kind is int:
        return b"%d" % value if _INT_MIN <= value < _INT_END else None
    if kind not in _PLAIN or not _is_small(value):
        return None
    from .plain_json import encoded

    try:
        json = encoded(value)
    except (TypeError, ValueError, RuntimeError):
        # Half of a surrogate pair, or another thread changes the value.
        return None
    return json if len(json) <= BYTES_MAX else None


def _is_small(value):
    """Whether all of the value is plain, and may be within the limits."""
    items, chars, depth, level = 0, 0, 0, [value]
    while level:
        inner = []
        for item in level:
            kind = type(item)
            if kind is str:
                chars += len(item)
            elif kind is list or kind is tuple:
                items += len(item)
                if items > _ITEMS_MAX or depth == DEPTH_MAX:
                    return False
                inner.extend(item)
            elif kind is dict:
                items += len(item)
                if items > _ITEMS_MAX or depth == DEPTH_MAX:
                    return False
                for key in tuple(item):
                    if type(key) is not str:
                        return False
                    chars += len(key)
                inner.extend(item.values())
            elif kind is float:
                if item - item != 0.0:
                    return False
            elif kind is int:
                if not _INT_MIN <= item < _INT_END:
                    return False
            elif kind is not bool and kind is not _NONE:
                return False
        if chars > BYTES_MAX:
            return False
        level = inner
        depth += 1
    return True


_PLAIN = frozenset((bool, float, str, list, tuple, dict))
