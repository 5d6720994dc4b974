// What the tests of a file share: a node, a browser, and a foreign site if they need one. All of it ends with the tests,
// also when a part of it cannot start.

import { after, before } from "node:test";

import { openBrowser } from "./browser.mjs";
import { TestNode } from "./node.mjs";
import { ForeignSite } from "./sites.mjs";

/** `prepare` gets the parts, before the first test begins. */
export function useStage({ browserArgs, withSite = false, prepare }) {
  const stage = {};
  before(async () => {
    const parts = {
      node: () => TestNode.start(),
      browser: () => openBrowser(browserArgs),
      ...(withSite ? { site: () => ForeignSite.start() } : {}),
    };
    const starting = Object.entries(parts).map(async ([name, start]) => (stage[name] = await start()));
    const failed = (await Promise.allSettled(starting)).find(({ status }) => status === "rejected");
    if (failed !== undefined) throw failed.reason;
    await prepare(stage);
  });
  after(async () => {
    await stage.browser?.close();
    await stage.node?.end();
    await stage.site?.end();
  });
}
