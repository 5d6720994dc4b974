// A host tool: a function of this program that the code in a session can call. Owns how its
// arguments are described and checked.

import { WindlassError } from "./errors.js";

/** A JSON schema of an object. */
export type JsonSchema = { readonly [key: string]: unknown };

/** A schema of a library that follows Standard Schema, as zod 4 does. */
interface StandardSchema<Input, Output> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Checked<Output> | Promise<Checked<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    readonly jsonSchema?: {
      readonly input: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown>;
    };
  };
}

type Checked<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: ReadonlyArray<Issue> };

interface Issue {
  readonly message: string;
  readonly path?: ReadonlyArray<PropertyKey | { readonly key: PropertyKey }> | undefined;
}

type AnyStandard = StandardSchema<unknown, unknown>;

/** What describes a tool's arguments: a zod 4 object or the like, or a JSON schema. */
export type InputSchema = AnyStandard | JsonSchema;

/** The arguments as the function gets them. */
export type ArgumentsOf<Schema> = Schema extends StandardSchema<unknown, infer Output>
  ? Output
  : Record<string, unknown>;

/** The call that is being answered. */
export interface ToolCall {
  readonly session: string;
  readonly turn: number;
  readonly call: number;
  readonly name: string;
  /** How long an answer was waited for when the call came. */
  readonly deadlineMs: number;
  /** Aborts when nobody waits for the answer any more; its reason says why. */
  readonly signal: AbortSignal;
}

export interface Tool {
  readonly description?: string | undefined;
  readonly input?: InputSchema | undefined;
  readonly deadlineMs?: number | undefined;
  readonly run: (args: never, call: ToolCall) => unknown;
}

export interface ToolDefinition<Schema extends InputSchema> {
  /** What it does, for the model that writes the code. Its first line is shown in lists. */
  description?: string | undefined;
  /** What its arguments are. Default: any, by name. */
  input?: Schema | undefined;
  /** How long a call may take where the code does not say. */
  deadlineMs?: number | undefined;
  /** Answers a call with a JSON value. What it throws is raised in the code. */
  run: (args: ArgumentsOf<Schema>, call: ToolCall) => unknown;
}

/** Describes a tool, with its arguments' types taken from `input`. */
export function tool<Schema extends InputSchema = JsonSchema>(
  definition: ToolDefinition<Schema>,
): Tool {
  return definition as Tool;
}

/** What a tool's arguments are, as a JSON schema. */
export async function jsonSchemaOf(name: string, input: InputSchema): Promise<JsonSchema> {
  if (!isStandard(input)) return input;
  const made = input["~standard"].jsonSchema?.input({ target: "draft-2020-12" });
  return withoutDialect(made ?? (await jsonSchemaByZod(name, input)));
}

/** The arguments, checked where the schema can. */
export async function checkArguments(
  input: InputSchema | undefined,
  args: unknown,
): Promise<unknown> {
  if (input === undefined || !isStandard(input)) return args;
  const checked = await input["~standard"].validate(args);
  if (checked.issues === undefined) return checked.value;
  throw new ArgumentsRefused(checked.issues.map(explain).join("; "));
}

/** The arguments are not what the tool's schema says. */
export class ArgumentsRefused extends Error {
  override readonly name = "TypeError";
}

function explain(issue: Issue): string {
  const place = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part));
  return place.length === 0 ? issue.message : `${place.join(".")}: ${issue.message}`;
}

function isStandard(input: InputSchema): input is AnyStandard {
  return "~standard" in input;
}

/** Releases of zod 4 before schemas could describe themselves. */
async function jsonSchemaByZod(name: string, input: AnyStandard): Promise<Record<string, unknown>> {
  if (input["~standard"].vendor === "zod" && "_zod" in input) {
    const { toJSONSchema } = await import("zod");
    return toJSONSchema(input as never, { io: "input" });
  }
  throw new WindlassError(
    "bad_request",
    `the schema of tool ${name} cannot be turned into a JSON schema`,
    "use zod 4, another library with Standard JSON Schema, or a plain JSON schema",
  );
}

function withoutDialect(schema: Record<string, unknown>): JsonSchema {
  const { $schema: _, ...rest } = schema;
  return rest;
}
