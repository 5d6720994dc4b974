// Requests that failed, and how the page tells people of them.

/** A request that the node refused, or that did not reach it. */
export class ApiProblem extends Error {
  readonly status: number;
  readonly code: string;
  readonly remedy: string;

  constructor(status: number, code: string, message: string, remedy: string) {
    super(message);
    this.status = status;
    this.code = code;
    this.remedy = remedy;
  }
}

/** A remedy that is for programs names a request. People get another one, or none. */
const FOR_PROGRAMS = /\b(?:GET|POST|PUT|DELETE) \/v1\//;
const FOR_PEOPLE: Record<string, string> = {
  bad_request: "Correct it, then try again.",
  file_not_found: "Look at the files that there are.",
};

/** A failure as one text for people. */
export function words(thrown: unknown): string {
  if (!(thrown instanceof ApiProblem)) return thrown instanceof Error ? thrown.message : String(thrown);
  const remedy = FOR_PROGRAMS.test(thrown.remedy) ? (FOR_PEOPLE[thrown.code] ?? "") : thrown.remedy;
  return remedy === "" ? thrown.message : `${thrown.message}. ${remedy}`.replace("..", ".");
}
