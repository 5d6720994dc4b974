// The errors of this package: a code that does not change between releases, a message and a remedy.

import type { ApiError } from "./api.js";

/** A failure of the node or of the connection to it. */
export class WindlassError extends Error {
  override readonly name: string = "WindlassError";
  /** A stable name that a program may branch on. */
  readonly code: string;
  /** What to do about it. */
  readonly remedy: string;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;

  constructor(
    code: string,
    message: string,
    remedy: string,
    options: { retryable?: boolean; cause?: unknown } = {},
  ) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    this.code = code;
    this.remedy = remedy;
    this.retryable = options.retryable ?? false;
  }

  static fromApi(error: ApiError): WindlassError {
    const { retryable } = error;
    return new WindlassError(error.code, error.message, error.remedy, { retryable });
  }
}

/** Whether `error` is a {@link WindlassError} with one of these codes. */
export function hasCode(error: unknown, ...codes: string[]): error is WindlassError {
  return error instanceof WindlassError && codes.includes(error.code);
}

export function unreachable(address: string, cause: Error): WindlassError {
  const message = `no node answers at ${address}: ${cause.message}`;
  return new WindlassError("unreachable", message, "start a node with: windlass up", {
    retryable: true,
    cause,
  });
}

export function connectionLost(cause: string): WindlassError {
  return new WindlassError(
    "connection_lost",
    `the connection to the node ended before its answer came: ${cause}`,
    "check the session before you repeat the request: the node may have carried it out",
  );
}

export function badAnswer(request: string, cause: string): WindlassError {
  return new WindlassError(
    "bad_answer",
    `the node's answer to ${request} cannot be understood: ${cause}`,
    "check that a windlass node, and not another program, listens there",
  );
}

export function clientClosed(): WindlassError {
  return new WindlassError("client_closed", "this client is closed", "make a new Windlass()");
}

/** A thrown value as an Error. */
export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}
