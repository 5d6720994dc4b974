// Colours of code.

import assert from "node:assert/strict";
import { test } from "node:test";

import { highlight } from "../../src/session/highlight.ts";

function check(kind: string, code: string, expected: string): void {
  const tokens = highlight(code, kind);
  assert.equal(tokens.map((token) => token.text).join(""), code);
  const shown = tokens.filter((token) => token.kind !== "plain" && token.text.trim() !== "");
  assert.equal(shown.map((token) => `${token.kind}:${token.text}`).join("|"), expected);
}

test("Python", () => {
  check("python", 'def f(x): return "a # b"  # note', 'keyword:def|name:f|keyword:return|string:"a # b"|comment:# note');
  check("python", '"""two\nlines""" + f\'x\'', 'string:"""two\nlines"""|string:f\'x\'');
  check("python", "x1 = 0xff + 1_000.5e3j", "number:0xff|number:1_000.5e3j");
  check("python", '"not closed', 'string:"not closed');
});

test("shell, R and JavaScript", () => {
  check("shell", "for f in a#b; do echo '$f'; done # all", "keyword:for|keyword:in|keyword:do|string:'$f'|keyword:done|comment:# all");
  check("r", "f <- function(x) TRUE # yes", "keyword:function|keyword:TRUE|comment:# yes");
  check("node", "const a = `x${1}`; // end", "keyword:const|string:`x${1}`|comment:// end");
  check("node", "/* two\nlines */ await go()", "comment:/* two\nlines */|keyword:await|name:go");
});

test("other languages are plain", () => {
  check("agent:codex", "fix the failing test", "");
});

test("long code is coloured in a moment", () => {
  const begun = performance.now();
  highlight('"'.repeat(200_000), "python");
  highlight("a".repeat(200_000), "node");
  highlight("'''".repeat(60_000), "python");
  assert.ok(performance.now() - begun < 2000);
});
