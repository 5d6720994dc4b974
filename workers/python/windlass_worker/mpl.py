"""A matplotlib backend: a figure is shown once, as one PNG, and closed.

Owns which figures have been shown. Not imported before the code imports matplotlib, and not set in
the environment: a child process keeps its own backend.
"""

from io import BytesIO
from weakref import WeakSet

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase, _Backend
from matplotlib.backends.backend_agg import FigureCanvasAgg

_shown = WeakSet()
# Set by the worker: sends a figure as a display.
show_figure = None


class FigureManager(FigureManagerBase):
    def show(self):
        """`figure.show()`"""
        _show_once(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block=None):
        """`plt.show()`, as newer releases call it."""
        show()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager


def show(*_arguments, **_options):
    """`plt.show()`: show the open figures, and close them."""
    try:
        for manager in Gcf.get_all_fig_managers():
            _show_once(manager.canvas.figure)
    finally:
        Gcf.destroy_all()


@_Backend.export
class _BackendWindlass(_Backend):
    FigureCanvas = FigureCanvas
    FigureManager = FigureManager
    show = show


def _show_once(figure):
    if figure not in _shown:
        show_figure(figure)


def show_leftovers():
    """The turn is over: show the figures that it drew and did not show."""
    import matplotlib

    if Gcf.figs and matplotlib.get_backend() == "module://" + __name__:
        show()


def png(figure):
    target = BytesIO()
    figure.savefig(target, format="png", bbox_inches="tight")
    return target.getvalue()


def mark_shown(figure):
    _shown.add(figure)
