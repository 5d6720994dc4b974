// Which schemas declare files, and where they are in the arguments of a call. Needs no node.

import assert from "node:assert/strict";
import { test } from "node:test";

import { z } from "zod";

import { takesFiles, withCopies } from "../src/file-arguments.js";
import { workspaceFile } from "../src/index.js";
import { jsonSchemaOf, type JsonSchema } from "../src/tool.js";

const file = workspaceFile();

/** The arguments with `copy:` before each path that is copied. */
function copied(schema: JsonSchema, value: unknown): Promise<unknown> {
  assert.equal(takesFiles("read", schema), true);
  return withCopies(schema, value, async (path) => `copy:${path}`);
}

test("a file is found through every reference that a schema may have", async () => {
  const given = { at: "/etc/passwd" };
  for (const schema of [
    { properties: { at: { $ref: "#/$defs/file" } }, $defs: { file } },
    { properties: { at: { $ref: "#/definitions/of.a-file_1" } }, definitions: { "of.a-file_1": file } },
    { properties: { at: { $ref: "#/properties/other" }, other: file } },
    { properties: { at: { anyOf: [{ type: "null" }, { $ref: "#/$defs/a" }] } }, $defs: { a: { $ref: "#/$defs/b" }, b: file } },
    { $id: "https://example.org/read", properties: { at: { $ref: "#/$defs/file" } }, $defs: { file } },
  ]) {
    assert.deepEqual(await copied(schema, given), { at: "copy:/etc/passwd" });
  }
  const tree = { properties: { at: file, below: { type: "array", items: { $ref: "#" } } } };
  assert.deepEqual(await copied(tree, { at: "a", below: [{ at: "b" }] }), {
    at: "copy:a",
    below: [{ at: "copy:b" }],
  });
  const zod = z.object({
    at: z.string().meta(workspaceFile()),
    get below() {
      return z.array(zod).optional();
    },
  });
  const made = await jsonSchemaOf("read", zod as never);
  assert.deepEqual(await copied(made, { at: "a", below: [{ at: "b" }] }), {
    at: "copy:a",
    below: [{ at: "copy:b" }],
  });
});

test("a schema with files and a reference that is not followed is refused", () => {
  const check = (schema: JsonSchema): void => {
    assert.throws(() => takesFiles("read", schema), {
      code: "bad_request",
      message: /tool read declares files, and has a reference/,
      remedy: /^refer to them by a plain #\/\$defs\/NAME/,
    });
  };
  for (const $ref of [
    "#/$defs/a~1b",
    "#/$defs/a/b",
    "#/$defs/a%20b",
    "#/$defs/a b",
    "#/$defs/none",
    "#/$defs/",
    "#/",
    "#anchor",
    "#/anyOf/0",
    "",
    "other.json#/$defs/file",
    "https://example.org/read#/$defs/file",
  ]) {
    check({
      properties: { at: { $ref } },
      anyOf: [file],
      $defs: { "a/b": file, "a b": file, "a%20b": {}, "a~1b": {}, anchored: { ...file, $anchor: "anchor" } },
    });
  }
  for (const name of ["$dynamicRef", "$recursiveRef"]) {
    check({ properties: { at: { [name]: "#/$defs/file" } }, $defs: { file } });
  }
  // A place where no value is looked for, and one where a reference means something else.
  check({ patternProperties: { "^x": { $ref: "#/$defs/file" } }, $defs: { file } });
  check({ properties: {}, then: { $ref: "#" }, $defs: { file } });
  check({
    properties: { at: { $id: "inner", $ref: "#/$defs/file", $defs: { file } } },
    $defs: { file: {} },
  });
});

test("a file that is declared where none is copied is refused", () => {
  for (const schema of [
    { patternProperties: { "^x": file } },
    { properties: [file] },
    { items: [file] },
    { contains: file },
    { propertyNames: file },
    { properties: { at: { type: "array", format: file.format, items: { type: "string" } } } },
    { properties: { at: { type: ["string", "object"], format: file.format } } },
  ]) {
    assert.throws(() => takesFiles("read", schema), { message: /declares a file where none is copied/ });
  }
});

test("a schema without a file may have any reference", () => {
  const schema = { properties: { $ref: { $ref: "#anchor" }, format: { type: "string" } }, not: { $ref: "x.json" } };
  assert.equal(takesFiles("read", schema), false);
  // A property may be called as a keyword is.
  const named = { properties: { $ref: { type: "string" }, $id: file } };
  assert.equal(takesFiles("read", named), true);
});

test("what is declared as a file is text, or what another part of the schema allows", async () => {
  const check = async (at: unknown, good: unknown[], bad: unknown[]): Promise<void> => {
    const schema = { properties: { at } };
    for (const value of good) assert.deepEqual(await copied(schema, { at: value }), { at: value });
    for (const value of bad) {
      await assert.rejects(copied(schema, { at: value }), { message: /the path of a file must be text/ });
    }
  };
  await check(file, [], [["/etc/passwd"], { toString: "/etc/passwd" }, null, 7, true]);
  await check({ format: file.format }, [], [["/etc/passwd"], null]);
  await check({ type: ["string", "null"], format: file.format }, [null], [["/etc/passwd"]]);
  await check({ allOf: [file, { description: "words" }] }, [], [["/etc/passwd"]]);
  await check({ anyOf: [file, { type: "null" }, { type: "integer" }] }, [null, 7], [true, ["a"], {}]);
  await check({ anyOf: [file, { properties: { n: {} } }, { const: false }] }, [{ n: "a" }, false], []);
  const either = { properties: { at: { anyOf: [file, { type: "array", items: file }] } } };
  assert.deepEqual(await copied(either, { at: ["a"] }), { at: ["copy:a"] });
});
