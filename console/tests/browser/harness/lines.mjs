// Reads a long output as a person does: opens it, and scrolls from its begin to its end.

import { eventually } from "./wait.mjs";

/** All lines of a turn's output, which must be longer than what the page shows at first. */
export async function allLines(page, shown) {
  await shown.getByRole("button", { name: /Show the rest/ }).click();
  const log = shown.getByRole("log", { name: "Output" });
  await log.evaluate((box) => (box.scrollTop = 0));
  const lines = new Map();
  for (let done = false; !done; ) {
    const visible = await eventually("the lines are read", async () => {
      const found = await log.evaluate(numbered);
      return found.length > 0 && found.every(([, text]) => text !== "…") && found;
    });
    for (const [number, text] of visible) lines.set(number, text);
    done = await log.evaluate((box) => {
      const end = box.scrollTop + box.clientHeight >= box.scrollHeight - 1;
      box.scrollTop += box.clientHeight;
      return end;
    });
    // The page draws the next lines after this frame.
    await page.evaluate(() => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next))));
  }
  return [...lines].sort(([left], [right]) => left - right).map(([, text]) => text);
}

/** Runs in the page: the lines that are elements, each with the number in front of it. */
function numbered(box) {
  const found = [];
  for (const mark of box.querySelectorAll("i[aria-hidden=true]")) {
    const text = mark.parentElement.textContent.slice(mark.textContent.length).replace(/\n$/, "");
    found.push([Number(mark.textContent), text]);
  }
  return found;
}
