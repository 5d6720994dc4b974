"""What two workers of one zygote, or two twins, must not share: made anew in each.

Owns the list of such things. Whatever is not loaded has nothing to be made anew.

What cannot be made anew is the seed of `hash` for text, which an interpreter has for life, and where
its memory lies: those that were forked from one process have them in common.
"""

import os
import sys

# The state of a Mersenne twister; the place after the last word says that all are used up.
_KEY_WORDS = 624


def environment(variables):
    """The session's own variables, and none of the zygote's."""
    wanted = dict(variable.split(b"=", 1) for variable in variables)
    current = os.environb
    # Most are the same: to set one anew takes longer than to see that.
    for name in [name for name in current if name not in wanted]:
        del current[name]
    for name, value in wanted.items():
        if current.get(name) != value:
            current[name] = value
    time = sys.modules.get("time")
    if time is not None:
        time.tzset()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None


def _numbers(random):
    """A state of chance alone, for which a seed would have to be made into one: that takes longer."""
    key = memoryview(os.urandom(4 * _KEY_WORDS)).cast("I")
    state = {"key": key, "pos": _KEY_WORDS}
    try:
        random.set_state(
            {"bit_generator": "MT19937", "state": state, "has_gauss": 0, "gauss": 0.0}
        )
    except Exception:
        # An older one, or one that somebody has changed to another kind.
        random.seed()


def secrets():
    """Seeds, keys and names that came from chance."""
    # `random` and OpenSSL know of forks themselves; what else draws from chance once does not.
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        _numbers(numbers)
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = uuid._last_timestamp = None
