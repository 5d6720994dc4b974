// Colours and moves of terminals.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LINE_SHOWN_MAX, lookAfter, PLAIN, renderLine } from "../../src/session/ansi.ts";

/** A line as `text` with the look in front of each piece that has one. */
function check(line: string, expected: string): void {
  const { pieces } = renderLine(line, PLAIN);
  const shown = pieces.map(({ text, look }) => {
    const names = Object.entries(look).map(([name, value]) => (value === true ? name : `${name}=${value}`));
    return names.length === 0 ? text : `<${names.join(" ")}>${text}`;
  });
  assert.equal(shown.join("|"), expected);
}

test("colours of the palette, of 256 and of all", () => {
  check("plain", "plain");
  check("\x1b[31mred\x1b[0m plain", "<fg=1>red| plain");
  check("\x1b[1;92mgood\x1b[22mthin\x1b[39mplain", "<bold fg=10>good|<fg=10>thin|plain");
  check("\x1b[38;5;196mred\x1b[48;5;232mdark", "<fg=#ff0000>red|<fg=#ff0000 bg=#080808>dark");
  check("\x1b[38;2;1;2;3mown\x1b[m.", "<fg=#010203>own|.");
  check("\x1b[38;5;9mpalette", "<fg=9>palette");
  check("\x1b[44;30mboth", "<bg=4 fg=0>both");
});

test("a carriage return writes over the line", () => {
  check("progress 10 %\rprogress 20 %", "progress 20 %");
  check("longer text\rshort", "shortr text");
  check("longer text\r\x1b[Kshort", "short");
  check("abc\x1b[2Kd", "   d");
  check("abc\b\bX", "aXc");
  check("windows\r", "windows");
  check("a\x1b[5Gb", "a   b");
});

test("markup, titles and unknown sequences stay text or vanish", () => {
  check("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>");
  check("\x1b]0;title\x07text", "text");
  check("\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\", "link");
  check("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor");
  check("\x1b[99999Cfar", `${" ".repeat(500)}far`);
  check("bell\x07", "bell");
  check("\x1b[", "[");
  check("tab\there", "tab\there");
});

test("a look goes on in the next line", () => {
  const first = renderLine("\x1b[32mgreen", PLAIN);
  assert.deepEqual(renderLine("still", first.end).pieces, [{ text: "still", look: { fg: 2 } }]);
  assert.deepEqual(lookAfter("\x1b[1mx\n\x1b[3my", PLAIN), { bold: true, italic: true });
});

test("a line without end is cut", () => {
  const text = renderLine("x".repeat(1_000_000), PLAIN).pieces.map((piece) => piece.text).join("");
  assert.ok(text.length <= LINE_SHOWN_MAX + 1);
  const bar = Array.from({ length: 100_000 }, (_, step) => `step ${step}`).join("\r");
  assert.equal(renderLine(bar, PLAIN).pieces[0]?.text, "step 99999");
});
