// Arguments of tools that are files of the calling session's workspace: how a schema declares them,
// and where they are in the arguments of a call. Knows no connection: `host-copies` makes the copies.

import { WindlassError } from "./errors.js";
import { ArgumentsRefused, type JsonSchema } from "./tool.js";

/** The `format` of such an argument in the tool's schema. */
const COPY_FORMAT = "windlass-file";
const WRITE_BACK_FORMAT = "windlass-file-write-back";

/**
 * The schema of an argument that is a file of the workspace: `z.string().meta(workspaceFile())`, or a
 * property of a JSON schema. The code passes a path in its workspace, and the function gets the path
 * of a copy on its own machine. The copy is removed after the call.
 */
export function workspaceFile(
  options: {
    /** Write the changed copy to the workspace before the call returns. */
    writeBack?: boolean;
    /** What the file is for, for the model that writes the code. */
    description?: string;
  } = {},
): { type: "string"; format: string; description: string } {
  const { writeBack = false, description = "" } = options;
  const words = description.trim().replace(/\.$/, "");
  const changes = writeBack ? ", which the tool may change" : "";
  const said = `The path of a file in the workspace${changes}.`;
  return {
    type: "string",
    format: writeBack ? WRITE_BACK_FORMAT : COPY_FORMAT,
    description: words === "" ? said : `${words}. ${said}`,
  };
}

/** Where a schema may say of a part of a value that it is a file. */
const PARTS = ["items", "additionalProperties"];
const LISTS_OF_PARTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const NAMED_PARTS = ["properties", "$defs", "definitions"];

/** Keywords that refer to another schema. Only `$ref` is followed. */
const REFERENCES = ["$ref", "$dynamicRef", "$recursiveRef"];

/** A reference that is followed: names of the schema itself, without an escape. `#` is the whole schema. */
const PLAIN_REFERENCE = /^#(?:\/[A-Za-z0-9_$.-]+)*$/;

/**
 * Whether an argument of this schema, or a part of one, is a file. Throws if a file is declared where it
 * would not be copied: the function would get a path of the code as it is.
 */
export function takesFiles(tool: string, schema: JsonSchema): boolean {
  // Each declaration and each reference, wherever it is; then those that `withCopies` follows.
  const there = { files: 0, references: 0 };
  const followed = { files: 0, references: 0 };
  const count = (value: unknown): void => {
    if (Array.isArray(value)) value.forEach(count);
    if (!isObject(value)) return;
    if (formatOf(value) !== undefined) there.files += 1;
    there.references += REFERENCES.filter((name) => typeof value[name] === "string").length;
    // The references within it are relative to this address.
    if (value !== schema && typeof value["$id"] === "string") there.references += 1;
    Object.values(value).forEach(count);
  };
  const visit = (part: unknown): void => {
    if (!isObject(part)) return;
    if (formatOf(part) !== undefined && isOfText(part)) followed.files += 1;
    if (referred(schema, part["$ref"]) !== undefined) followed.references += 1;
    for (const name of PARTS) visit(part[name]);
    for (const name of LISTS_OF_PARTS) listOf(part[name]).forEach(visit);
    for (const name of NAMED_PARTS) if (isObject(part[name])) listOf(part[name]).forEach(visit);
  };
  count(schema);
  if (there.files === 0) return false;
  visit(schema);
  const places = [...NAMED_PARTS, ...PARTS, ...LISTS_OF_PARTS].join(", ");
  if (followed.files !== there.files) {
    throw new WindlassError(
      "bad_request",
      `the schema of tool ${tool} declares a file where none is copied`,
      `declare files in ${places} only, with the type "string"`,
    );
  }
  if (followed.references !== there.references) {
    throw new WindlassError(
      "bad_request",
      `the schema of tool ${tool} declares files, and has a reference that cannot be followed to them`,
      `refer to them by a plain #/$defs/NAME, in ${places} only`,
    );
  }
  return true;
}

/** Makes a copy of a file and returns its path. */
type Copy = (path: string, writeBack: boolean) => Promise<string>;

/** The value with a copy's path in place of each path that its schema declares as a file. */
export function withCopies(schema: JsonSchema, value: unknown, copy: Copy): Promise<unknown> {
  return convert([schema], value);

  async function convert(schemas: readonly unknown[], given: unknown): Promise<unknown> {
    // Each value is visited once, with every schema that may describe it.
    const all = withAlternatives(schema, schemas);
    if (all.size === 0) return given;
    const formats = [...all].map(formatOf).filter((format) => format !== undefined);
    if (typeof given === "string") {
      return formats.length === 0 ? given : copy(given, formats.includes(WRITE_BACK_FORMAT));
    }
    // Without this check a list with a path in it would reach the function as it is.
    if (formats.length > 0 && ![...all].some((one) => admits(one, given))) {
      const shown = JSON.stringify(given).slice(0, 60);
      throw new ArgumentsRefused(`the path of a file must be text, not ${shown}`);
    }
    if (Array.isArray(given)) {
      const items: unknown[] = [];
      for (const [at, item] of given.entries()) {
        const of = [...all].map((one) => listOf(one["prefixItems"])[at] ?? one["items"]);
        items.push(await convert(of, item));
      }
      return items;
    }
    if (!isObject(given)) return given;
    const fields: [string, unknown][] = [];
    for (const [name, field] of Object.entries(given)) {
      const of = [...all].map((one) => member(one["properties"], name) ?? one["additionalProperties"]);
      fields.push([name, await convert(of, field)]);
    }
    return Object.fromEntries(fields);
  }
}

/** These schemas and all that they refer to for the same value. */
function withAlternatives(root: JsonSchema, schemas: readonly unknown[]): Set<JsonSchema> {
  const all = new Set<JsonSchema>(schemas.filter(isObject));
  // A set is visited in the order of insertion, also what is added meanwhile.
  for (const one of all) {
    const others = ["anyOf", "oneOf", "allOf"].flatMap((name) => listOf(one[name]));
    for (const other of [...others, referred(root, one["$ref"])]) if (isObject(other)) all.add(other);
  }
  return all;
}

/** The schema that a reference names; undefined if the reference cannot be followed. */
function referred(root: JsonSchema, reference: unknown): JsonSchema | undefined {
  if (typeof reference !== "string" || !PLAIN_REFERENCE.test(reference)) return undefined;
  const found = reference.split("/").slice(1).reduce(member, root as unknown);
  return isObject(found) ? found : undefined;
}

/** Whether a schema allows no list and no object, whose texts would not be copied. */
function isOfText(schema: JsonSchema): boolean {
  const types = [schema["type"] ?? "string"].flat();
  return types.every((type) => type === "string" || type === "null");
}

/** Whether a schema says that a value, which is no text, may be in its place. */
function admits(schema: JsonSchema, value: unknown): boolean {
  if ("const" in schema || "enum" in schema) return true;
  const types = [schema["type"]].flat();
  if (value === null) return types.includes("null");
  if (Array.isArray(value)) {
    return types.includes("array") || "items" in schema || "prefixItems" in schema;
  }
  if (isObject(value)) {
    return types.includes("object") || "properties" in schema || "additionalProperties" in schema;
  }
  return types.includes(typeof value) || (typeof value === "number" && types.includes("integer"));
}

function formatOf(schema: JsonSchema): string | undefined {
  const { format } = schema;
  return format === COPY_FORMAT || format === WRITE_BACK_FORMAT ? format : undefined;
}

function member(value: unknown, name: string): unknown {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

function listOf(value: unknown): unknown[] {
  return Array.isArray(value) ? value : isObject(value) ? Object.values(value) : [];
}

function isObject(value: unknown): value is JsonSchema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
