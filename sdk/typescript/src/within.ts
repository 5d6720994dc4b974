// The tool call in which a request is made. The node refuses a request that would wait for its own
// call.

import { AsyncLocalStorage } from "node:async_hooks";

export const WITHIN_HEADER = "windlass-within";

/** `SESSION/TURN/CALL` of the current tool call, if there is one. */
export const within = new AsyncLocalStorage<string>();
