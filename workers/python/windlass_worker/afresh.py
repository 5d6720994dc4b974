"""Resets state that two workers of one zygote, or two twins, must not share.

Owns the list of such state. A module that is not loaded has nothing to reset.

Two things cannot be reset: the seed of `hash` for text, which an interpreter keeps for life, and
the memory layout. All processes that were forked from one process have both in common.
"""

import os
import sys

# Words in the state of a Mersenne twister. This position says that all words are used up.
_KEY_WORDS = 624


def environment(variables):
    """Set the session's variables, and remove all of the zygote's."""
    wanted = dict(variable.split(b"=", 1) for variable in variables)
    current = os.environb
    # Most variables are the same already, and comparing is faster than setting.
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
    """Set a random state directly. Deriving one from a seed takes longer."""
    key = memoryview(os.urandom(4 * _KEY_WORDS)).cast("I")
    state = {"key": key, "pos": _KEY_WORDS}
    try:
        random.set_state(
            {"bit_generator": "MT19937", "state": state, "has_gauss": 0, "gauss": 0.0}
        )
    except Exception:
        # An older numpy, or a generator of another kind.
        random.seed()


def secrets():
    """Draw new seeds, keys and names from the system's random source."""
    # `random` and OpenSSL handle forks themselves. These modules draw random values once and do
    # not.
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
