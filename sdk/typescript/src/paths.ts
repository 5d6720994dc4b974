// Builds request paths.

type Value = string | number | boolean | null | undefined;

/** `/v1/PARTS?QUERY`. Absent parameters are left out. */
export function path(parts: readonly string[], query: Record<string, Value> = {}): string {
  const asked = Object.entries(query)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`);
  const place = parts.map((part) => `/${encodeURIComponent(part)}`).join("");
  return `/v1${place}${asked.length === 0 ? "" : `?${asked.join("&")}`}`;
}
