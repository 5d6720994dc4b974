// The tools of a host by name, and their declaration.

import { WindlassError } from "./errors.js";
import { takesFiles } from "./file-arguments.js";
import { type JsonSchema, jsonSchemaOf, type Tool } from "./tool.js";

const TOOL_NAME = /^(?:[A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$/;

/** Tools by name. A group of tools is a nested object, or a name with a dot. */
export interface Tools {
  readonly [name: string]: Tool | { readonly [name: string]: Tool };
}

/** The offered tools and their declaration. */
export class Offer {
  private constructor(
    readonly tools: ReadonlyMap<string, Tool>,
    readonly declaration: Buffer,
    /** The schemas of the tools whose arguments are files of the workspace. */
    readonly withFiles: ReadonlyMap<string, JsonSchema>,
  ) {}

  static async of(tools: Tools): Promise<Offer> {
    const flat = new Map(flatten(tools));
    const offers = [...flat].map(async ([name, tool]) => ({
      name,
      description: tool.description,
      input_schema: tool.input && (await jsonSchemaOf(name, tool.input)),
      deadline_ms: tool.deadlineMs,
    }));
    const declared = await Promise.all(offers);
    const withFiles = new Map<string, JsonSchema>();
    for (const { name, input_schema: schema } of declared) {
      if (schema !== undefined && takesFiles(name, schema)) withFiles.set(name, schema);
    }
    return new Offer(flat, Buffer.from(JSON.stringify({ tools: declared })), withFiles);
  }
}

function* flatten(tools: Tools): Generator<[string, Tool]> {
  for (const [name, entry] of Object.entries(tools)) {
    const named = isTool(entry)
      ? [[name, entry] as const]
      : Object.entries(entry).map(([inner, tool]) => [`${name}.${inner}`, tool] as const);
    for (const [full, tool] of named) {
      if (!TOOL_NAME.test(full)) {
        throw new WindlassError(
          "bad_request",
          `${JSON.stringify(full)} is not a valid tool name`,
          "use letters, digits and underscores, with one group and a dot before it at most",
        );
      }
      yield [full, tool];
    }
  }
}

function isTool(entry: Tools[string]): entry is Tool {
  return typeof entry["run"] === "function";
}
