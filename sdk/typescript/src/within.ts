// In which tool call a request is made. The node refuses at once what would wait for itself.

import { AsyncLocalStorage } from "node:async_hooks";

export const WITHIN_HEADER = "windlass-within";

/** `SESSION/TURN/CALL` of the tool call that is being answered, where one is. */
export const within = new AsyncLocalStorage<string>();
