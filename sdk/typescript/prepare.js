// Builds the package when it is installed from a clone, packed or published. `npm install DIRECTORY` links the directory
// and installs none of its development dependencies, so this installs the compiler first if it is missing.

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));

function npm(...args) {
  const ran = spawnSync("npm", args, { cwd: here, stdio: "inherit" });
  if (ran.error) throw ran.error;
  if (ran.status !== 0) process.exit(ran.status ?? 1);
}

if (!existsSync(join(here, "node_modules/typescript/package.json"))) {
  npm("install", "--ignore-scripts", "--include=dev", "--no-audit", "--no-fund", "--no-package-lock");
}
npm("run", "build");
