// Whether the node is in a fleet. A node without one refuses the question, so the page asks once.

import type { FleetStatus } from "../../../sdk/typescript/src/api.ts";
import { ApiProblem, call } from "./api.ts";

let known: boolean | undefined;

/** How the node stands in its fleet; absent without a fleet. */
export async function fleetStatus(signal?: AbortSignal): Promise<FleetStatus | undefined> {
  if (known === false) return undefined;
  try {
    const status = await call<FleetStatus>("/v1/fleet/status", signal === undefined ? {} : { signal });
    known = true;
    return status;
  } catch (thrown) {
    if (thrown instanceof ApiProblem && thrown.status >= 400 && thrown.status < 500 && thrown.status !== 401) known ??= false;
    return undefined;
  }
}

export async function inFleet(): Promise<boolean> {
  return known ?? (await fleetStatus()) !== undefined;
}
