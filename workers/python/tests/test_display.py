"""Rich output, and figures: each arrives once, in one form, and can be replaced."""

import importlib.util
import os
import subprocess
import unittest

from keeper import PYTHON
from test_cells import WithKeeper

PNG = b"\x89PNG\r\n\x1a\n"


def worker_has(module):
    if PYTHON == os.sys.executable:
        return importlib.util.find_spec(module) is not None
    return subprocess.run([PYTHON, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode == 0


class Displays(WithKeeper):
    def test_a_rich_value_is_also_displayed(self):
        for body, shown in (
            ("_repr_html_(self): return '<b>x</b>'", ("text/html", b"<b>x</b>", None, False)),
            ("_repr_png_(self): return b'PNG'", ("image/png", b"PNG", None, False)),
            ("_repr_png_(self): return 'UE5H'", ("image/png", b"PNG", None, False)),
            ("_repr_svg_(self): return '<svg/>'", ("image/svg+xml", b"<svg/>", None, False)),
            ("_repr_jpeg_(self): return b'J', {'width': 3}", ("image/jpeg", b"J", None, False)),
            ("_repr_markdown_(self): return '# x'", ("text/markdown", b"# x", None, False)),
            ("_repr_latex_(self): return '$x$'", ("text/latex", b"$x$", None, False)),
            (
                "_repr_mimebundle_(self, **k): return {'text/plain': 'x', 'a/b+json': {'k': 1}}",
                ("a/b+json", b'{"k": 1}', None, False),
            ),
            ("_repr_html_(self): raise ValueError", None),
            ("_repr_html_(self): return None", None),
        ):
            told = self.run_code("class Rich:\n    def %s\n    __repr__ = lambda s: 'rich'\nRich()" % body)
            self.assertEqual((told.result, told.outcome), ("rich\n", "ok"), body)
            self.assertEqual(told.displays(), [shown] if shown else [], body)

    def test_display_shows_content_of_a_given_type(self):
        told = self.run_code(
            "display(b'data', mime='image/png', id='mine')\n"
            "display('text', mime='text/html')\n"
            "display({'a': 1}, mime='application/json')\n"
            "None"
        )
        self.assertEqual([d[:2] for d in told.displays()],
                         [("image/png", b"data"), ("text/html", b"text"), ("application/json", b'{"a": 1}')])
        self.assertEqual(told.displays()[0][2], "mine")

    def test_an_update_replaces_the_display_with_the_same_id(self):
        self.run_code("handle = display('1', mime='text/html')\nNone")
        told = self.run_code("handle.update('2', mime='text/html')\nhandle.id")
        ((mime, body, id, update),) = told.displays()
        self.assertEqual((mime, body, update), ("text/html", b"2", True))
        self.assertEqual(told.result, repr(id) + "\n")

    def test_what_has_no_rich_form_is_printed(self):
        told = self.run_code("handle = display([1, 2])")
        self.assertEqual((told.printed, told.displays()), ("[1, 2]\n", []))
        told = self.run_code("display([3], id='x')\nNone")
        self.assertEqual(told.displays(), [("text/plain", b"[3]", "x", False)])

    def test_a_large_display_comes_in_several_frames_and_a_huge_one_is_refused(self):
        told = self.run_code("handle = display(bytes(5_000_000), mime='image/png')")
        self.assertGreater(len(told.all("display")), 20)
        self.assertEqual(len(told.displays()[0][1]), 5_000_000)
        told = self.run_code("display(bytes(16 * 1024 * 1024 + 1), mime='image/png')")
        self.assertEqual((told.error["name"], told.displays()), ("ValueError", []))

    def test_a_wrong_type_is_an_error_and_the_name_can_be_shadowed(self):
        self.assertEqual(self.run_code("display(3, mime='image/png')").error["name"], "TypeError")
        self.assertEqual(self.run_code("display = 5\ndisplay").result, "5\n")

    def test_the_value_comes_before_its_display_and_both_before_idle(self):
        told = self.run_code("class R:\n    def _repr_html_(self): return 'h'\nR()")
        self.assertEqual([e["kind"] for e in told.events], ["output", "display", "idle"])


@unittest.skipUnless(worker_has("matplotlib"), "matplotlib is not installed")
class Figures(WithKeeper):
    def setUp(self):
        super().setUp()
        told = self.run_code("import matplotlib.pyplot as plt")
        self.assertEqual(told.outcome, "ok", told.traceback)

    def figures(self, told):
        for mime, body, _, _ in told.displays():
            self.assertEqual((mime, body[:8]), ("image/png", PNG))
        return len(told.displays())

    def test_each_way_to_show_a_figure_shows_it_once(self):
        for code in (
            "_ = plt.plot([1, 2]); plt.show()",
            "_ = plt.plot([1, 2])",
            "plt.plot([1, 2])",
            "fig, ax = plt.subplots(); fig",
            "fig, ax = plt.subplots(); handle = display(fig)",
            "fig, ax = plt.subplots(); fig.show()",
            "fig, ax = plt.subplots(); plt.show(); plt.show()",
            "plt.ion(); _ = plt.plot([1]); plt.show(block=True); plt.ioff()",
        ):
            told = self.run_code(code)
            self.assertEqual((self.figures(told), told.errors), (1, ""), code + told.traceback)
            self.assertEqual(self.figures(self.run_code("plt.get_fignums()")), 0)

    def test_figures_are_closed_and_several_are_several(self):
        told = self.run_code("for i in range(3): plt.figure(); plt.plot([i])\nplt.show()\nplt.get_fignums()")
        self.assertEqual((self.figures(told), told.result), (3, "[]\n"))
        self.assertEqual(self.figures(self.run_code("plt.figure(); plt.close()")), 0)

    def test_a_figure_can_be_updated(self):
        self.run_code("fig, ax = plt.subplots()\nhandle = display(fig)")
        told = self.run_code("_ = ax.plot([1, 2, 3])\nhandle.update(fig)")
        self.assertEqual([d[3] for d in told.displays()], [True])
        self.assertEqual(self.figures(told), 1)

    def test_a_figure_that_was_drawn_before_an_error_is_shown(self):
        told = self.run_code("_ = plt.plot([1])\n1 / 0")
        self.assertEqual((self.figures(told), told.error["name"]), (1, "ZeroDivisionError"))

    def test_another_backend_is_respected_and_children_keep_their_own(self):
        told = self.run_code(
            "import subprocess, sys\n"
            "_ = subprocess.run([sys.executable, '-c', 'import matplotlib.pyplot as p; "
            "p.plot([1]); import matplotlib; print(matplotlib.get_backend().lower())'])"
        )
        self.assertEqual(told.printed, "agg\n", told.errors)
        told = self.run_code("import matplotlib\nmatplotlib.use('svg')\n_ = plt.plot([1])")
        self.assertEqual(self.figures(told), 0)

    @unittest.skipUnless(worker_has("PIL"), "Pillow is not installed")
    def test_an_image_of_pillow_is_shown_once(self):
        told = self.run_code("from PIL import Image\nImage.new('RGB', (4, 4))")
        self.assertEqual(self.figures(told), 1)


if __name__ == "__main__":
    unittest.main()
