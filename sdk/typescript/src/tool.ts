// A host tool: a function of this program that the code in a session can call. Owns the description
// and the check of its arguments.

import { WindlassError } from "./errors.js";

/** A JSON schema of an object. */
export type JsonSchema = { readonly [key: string]: unknown };

/** A schema of a library that follows Standard Schema, such as zod 4. */
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

/** The schema of a tool's arguments: a zod 4 object or similar, or a JSON schema. */
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
  /** How long the code waits for an answer, counted from the arrival of the call. */
  readonly deadlineMs: number;
  /** Aborts when the code no longer waits for the answer; the reason says why. */
  readonly signal: AbortSignal;
}

export interface Tool {
  readonly description?: string | undefined;
  readonly input?: InputSchema | undefined;
  readonly deadlineMs?: number | undefined;
  readonly run: (args: never, call: ToolCall) => unknown;
}

export interface ToolDefinition<Schema extends InputSchema> {
  /** What the tool does, for the model that writes the code. Lists show its first line. */
  description?: string | undefined;
  /** The schema of its arguments. Default: any named arguments. */
  input?: Schema | undefined;
  /** Default deadline of a call. */
  deadlineMs?: number | undefined;
  /** Answers a call with a JSON value. An exception is raised in the code. */
  run: (args: ArgumentsOf<Schema>, call: ToolCall) => unknown;
}

/** Describes a tool, with its arguments' types taken from `input`. */
export function tool<Schema extends InputSchema = JsonSchema>(
  definition: ToolDefinition<Schema>,
): Tool {
  return definition as Tool;
}

/** The JSON schema of a tool's arguments. */
export async function jsonSchemaOf(name: string, input: InputSchema): Promise<JsonSchema> {
  if (!isStandard(input)) return input;
  const made = input["~standard"].jsonSchema?.input({ target: "draft-2020-12" });
  return withoutDialect(made ?? (await jsonSchemaByZod(name, input)));
}

/** The arguments, checked if the schema can check them. */
export async function checkArguments(
  input: InputSchema | undefined,
  args: unknown,
): Promise<unknown> {
  if (input === undefined || !isStandard(input)) return args;
  const checked = await input["~standard"].validate(args);
  if (checked.issues === undefined) return checked.value;
  throw new ArgumentsRefused(checked.issues.map(explain).join("; "));
}

/** The arguments do not match the tool's schema. */
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

/** For releases of zod 4 whose schemas cannot describe themselves. */
async function jsonSchemaByZod(name: string, input: AnyStandard): Promise<Record<string, unknown>> {
  if (input["~standard"].vendor === "zod" && "_zod" in input) {
    const { toJSONSchema } = await import("zod");
    return toJSONSchema(input as never, { io: "input" });
  }
  throw new WindlassError(
    "bad_request",
    `the schema of tool ${name} cannot be converted to a JSON schema`,
    "use zod 4, another library with Standard JSON Schema, or a plain JSON schema",
  );
}

function withoutDialect(schema: Record<string, unknown>): JsonSchema {
  const { $schema: _, ...rest } = schema;
  return rest;
}
